/* replay.c: runs a fuzz target over every file of the folders (or files) named, and over an empty input, in the ordinary
 * build. A target that misbehaves aborts or is stopped by a sanitizer; there is nothing else to check here. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int n_files;

static int run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) {
        printf("not ok - %s cannot be read\n", path);
        if (f) fclose(f);
        return 1;
    }
    size_t n = (size_t)st.st_size;
    uint8_t *data = malloc(n ? n : 1); /* exact size: a read past the end is caught under ASAN */
    int bad = !data || fread(data, 1, n, f) != n;
    fclose(f);
    if (!bad) LLVMFuzzerTestOneInput(data, n);
    free(data);
    n_files++;
    return bad;
}

static int run_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return 0; /* a target without a corpus */
    if (!S_ISDIR(st.st_mode)) return run_file(path);
    DIR *d = opendir(path);
    if (!d) return 1;
    int bad = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char sub[4096];
        int n = snprintf(sub, sizeof sub, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.' && n > 0 && (size_t)n < sizeof sub) bad |= run_file(sub);
    }
    closedir(d);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) bad |= run_path(argv[i]);
    if (!bad) printf("ok - corpus of %d files\n", n_files);
    return bad;
}
