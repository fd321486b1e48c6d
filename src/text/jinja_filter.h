/* jinja_filter.h: what the files of filters share. */
#ifndef CB_TEXT_JINJA_FILTER_H
#define CB_TEXT_JINJA_FILTER_H
#include "text/jinja_value.h"

/* Most filters: (value, bound arguments). See the table in jinja_filter.c. */
cb_jv cb_j_tojson(cb_jr *r, cb_jv v, const cb_jv *a);

/* Pairs of d by key or value; an array of d->n, NULL with rc set. */
const cb_jpair *cb_j_sorted_pairs(cb_jr *r, const cb_jdict *d, bool case_sensitive, bool by_value, bool reverse);
/* Stable merge sort of n items by keys[i]; both arrays are reordered. */
void cb_j_sort(cb_jr *r, cb_jv *keys, cb_jv *items, size_t n, bool reverse);

/* Looks up "a.b.0" step by step, as attribute= arguments do. */
cb_jv cb_j_path(cb_jr *r, cb_jv v, cb_jv path);
cb_jv cb_j_lower(cb_jr *r, cb_jv v); /* lower case when it is a string, else v */

/* Sequences (jinja_filter_seq.c). */
#define CB_JFN(name) cb_jv cb_jf_##name(cb_jr *r, cb_jv v, const cb_jv *a)
#define CB_JRAW(name) cb_jv cb_jf_##name(cb_jr *r, cb_jv v, const cb_jcall *call)
CB_JFN(first);
CB_JFN(last);
CB_JFN(length);
CB_JFN(list);
CB_JFN(join);
CB_JFN(sort);
CB_JFN(unique);
CB_JFN(dictsort);
CB_JFN(items);
CB_JFN(sum);
CB_JFN(min);
CB_JFN(max);
CB_JFN(reverse);
CB_JFN(batch);
CB_JFN(slice);
CB_JFN(groupby);
CB_JRAW(map);
CB_JRAW(select);
CB_JRAW(reject);
CB_JRAW(selectattr);
CB_JRAW(rejectattr);

/* Strings (jinja_str.c): shared between filters and methods. */
CB_JFN(upper);
CB_JFN(lower);
CB_JFN(capitalize);
CB_JFN(title_words); /* jinja2's title */
CB_JFN(strip);
CB_JFN(replace);
CB_JFN(splitlines);
size_t cb_j_space(const char *s, size_t n); /* length of the white space character at s, or 0 */
bool cb_j_all_case(cb_jv s, bool upper);    /* islower, isupper */
/* Line at s: its length without the break; *skip: with it. */
size_t cb_j_line(const char *s, size_t n, size_t *skip);
#endif
