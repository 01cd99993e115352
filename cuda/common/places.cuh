// places.cuh: where rows and tokens of a tile (params/tiles.h) are in the result D of a matrix instruction, 16 by 8.
//
// Tokens 0 to 3 have the even columns and 4 to 7 the odd ones: a lane has two neighbouring columns, and of up to four tokens
// needs the first only.
#pragma once
#include "intrin.cuh"

// The row of register r of a lane, and its token.
INTRIN int tile_row(int lane, int r) { return lane / 4 + 8 * (r / 2); }
INTRIN int tile_token(int lane, int r) { return lane % 4 + 4 * (r % 2); }

// The column of a token.
INTRIN int tile_column(int token) { return token % 4 * 2 + token / 4; }
