/* fake_map.h: what the driver without a GPU puts into a CUtensorMap, and emulated kernels read: rows of bytes, boxes of them. */
#ifndef FAKE_MAP_H
#define FAKE_MAP_H
#include <stdint.h>

typedef struct fake_map {
    const unsigned char *at;
    uint64_t row_bytes, rows, stride;
    uint32_t box_bytes, box_rows;
    uint32_t swizzle; /* bytes of a row of the pattern: 0, 32, 64 or 128 */
    uint32_t box_pieces; /* of three dimensions: so many boxes, each behind the one of the bytes before; else 1 */
} fake_map;
#endif
