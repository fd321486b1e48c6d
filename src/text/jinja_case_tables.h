/* jinja_case_tables.h: case mappings to several characters. */
#ifndef CB_TEXT_JINJA_CASE_TABLES_H
#define CB_TEXT_JINJA_CASE_TABLES_H
#include <stdint.h>

typedef struct cb_jcase {
    uint16_t from, upper[3], title[3]; /* padded with 0 */
} cb_jcase;
extern const cb_jcase cb_jcase_table[]; /* sorted by from */
extern const int cb_jcase_count;
#endif
