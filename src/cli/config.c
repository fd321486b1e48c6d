/* config.c: `cambium config`: the settings in force and where each comes from. */
#include "cli/commands.h"
#include "cli/term.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The value as JSON; NULL when there is none. */
static json_t *value_of(const cli_opts *o, const cli_flag *f)
{
    const char *at = (const char *)o + f->offset;
    switch (f->type) {
    case CLI_BOOL: return json_boolean(*(const bool *)at);
    case CLI_INT:
    case CLI_SIZE: {
        int64_t v = *(const int64_t *)(const void *)at;
        return v == INT64_MIN ? NULL : json_integer(v);
    }
    case CLI_REAL: {
        double v = *(const double *)(const void *)at;
        return isnan(v) ? NULL : json_real(v);
    }
    case CLI_LIST: {
        const cli_list *l = (const cli_list *)(const void *)at;
        json_t *a = l->n ? json_array() : NULL;
        for (int i = 0; i < l->n; i++) json_array_append_new(a, cli_json_string(l->v[i], strlen(l->v[i])));
        return a;
    }
    case CLI_TEXT:
    case CLI_OPTIONAL: {
        const char *v = *(const char *const *)(const void *)at;
        return v ? cli_json_string(v, strlen(v)) : NULL;
    }
    case CLI_SET: return NULL; /* the flag it stands for is shown */
    }
    return NULL;
}

/* What generation_config.json sets of those that nobody else has set. */
static json_t *checkpoint_value(const cb_sampling *p, const char *name)
{
    cb_sampling neutral;
    cb_sampling_init(&neutral);
    const struct {
        const char *name;
        double v, usual;
        bool is_int;
    } rows[] = { { "temp", (double)p->temperature, (double)neutral.temperature, false }, { "top-k", p->top_k, neutral.top_k, true },
                 { "top-p", (double)p->top_p, (double)neutral.top_p, false }, { "min-p", (double)p->min_p, (double)neutral.min_p, false },
                 { "repeat-penalty", (double)p->repetition_penalty, (double)neutral.repetition_penalty, false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].name, name) && rows[i].v != rows[i].usual) return rows[i].is_int ? json_integer((json_int_t)rows[i].v) : json_real(rows[i].v);
    return NULL;
}

static void show(const cli_flag *f, json_t *v, const char *source, json_t *all)
{
    if (all) {
        json_object_set_new(all, f->name, json_pack("{s:o, s:s}", "value", v ? v : json_null(), "source", source));
        return;
    }
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    printf("%-22s %-24s %s\n", f->name, text ? text : "-", source);
    free(text);
    json_decref(v);
}

int cmd_config(const cli_opts *o, cb_err *err)
{
    static const char *const sources[] = { "built-in", "file", "file, for this model", "variable", "flag" };
    cli_model m = {0};
    cb_sampling sampling;
    char path[4096];
    int rc = o->n_args ? cli_model_open(&m, o, 0, 0, 0, err) : 0;
    if (rc == 0 && o->n_args) rc = cli_sampling(o, m.dir, &sampling, err);
    if (rc < 0) return rc;
    json_t *all = o->json ? json_object() : NULL;
    cli_settings_path(o, path, sizeof path);
    if (!all) printf("settings file: %s\n", *path ? path : "none");
    for (int g = 0; o->cmd->groups[g]; g++)
        for (const cli_flag *f = o->cmd->groups[g]; f->name; f++) {
            if (f->type == CLI_SET || !strcmp(f->name, "help")) continue;
            int from = o->from[f->offset];
            json_t *v = from ? value_of(o, f) : NULL, *theirs = !from && o->n_args ? checkpoint_value(&sampling, f->name) : NULL;
            show(f, theirs ? theirs : from ? v : value_of(o, f), theirs ? "checkpoint" : sources[from], all);
        }
    cli_model_close(&m);
    return all ? cli_print_json(all, err) : 0;
}
