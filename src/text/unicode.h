/* unicode.h: character classes and normal forms. The reference is Hugging Face's tokenizers (classes of Unicode 16, normal
 * forms of Unicode 9), whatever version the libraries below have: the same text must give the same ids everywhere. Characters younger than the oldest accepted PCRE2 are classified, and
 * shown to regular expressions, as a stand-in: an older character of the same category and the same number of bytes. */
#ifndef CB_TEXT_UNICODE_H
#define CB_TEXT_UNICODE_H
#include "base/mem.h"

typedef struct cb_unicode_range {
    uint32_t first, last, stand_in;
} cb_unicode_range;
extern const cb_unicode_range cb_unicode_standins[]; /* ascending */
extern const int cb_unicode_n_standins;
/* Marks and characters with decompositions too young for the reference's normalizers, which leave them alone. */
extern const cb_unicode_range cb_unicode_inert[]; /* ascending */
extern const int cb_unicode_n_inert;
/* Where the reference's punctuation differs from category P. */
extern const cb_unicode_range cb_unicode_punct_flip[]; /* ascending */
extern const int cb_unicode_n_punct_flip;

/* The character to classify instead of cp: cp itself for all but young characters. */
uint32_t cb_unicode_stand_in(uint32_t cp);
/* Whether valid UTF-8 text holds a character with a stand-in. */
bool cb_unicode_has_young(const char *s, size_t n);
/* Appends s with young characters replaced by their stand-ins; offsets stay the same. */
void cb_unicode_put_old(cb_buf *b, const char *s, size_t n);

bool cb_unicode_is_space(uint32_t cp);   /* White_Space */
bool cb_unicode_is_numeric(uint32_t cp); /* Nd, Nl, No */
bool cb_unicode_is_punct(uint32_t cp);   /* ASCII punctuation and symbols, P* */
bool cb_unicode_is_word(uint32_t cp);    /* Alphabetic, M*, Nd, Pc, joiners */
bool cb_unicode_is_mark(uint32_t cp);    /* M* */

enum { CB_NFC, CB_NFD, CB_NFKC, CB_NFKD };
/* Appends the normal form of valid UTF-8 text. Linear but for sorting marks (n log n). */
void cb_unicode_normalize(cb_buf *out, const char *s, size_t n, int form);
/* Whether the text certainly is in that form already (false when it is not easy to say). */
bool cb_unicode_is_normal(const char *s, size_t n, int form);
/* Appends the text with every character mapped to its full lower case (without context rules). */
void cb_unicode_lower(cb_buf *out, const char *s, size_t n);
#endif
