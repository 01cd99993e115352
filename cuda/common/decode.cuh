// decode.cuh: from the blocks of a quantized tensor to values; what the decoders of all types share.
//
// A value of any quantized type is scale * q, or scale * q + offset, with q an integer of 8 bits; scale and offset hold for
// kScaleElems values in a row. Each type tells how by a specialization of `decode`, in a header of its own:
//
//   kElems, kScaleElems, kOffset       values per block, values per scale, whether there is an offset
//   uint32_t quants4(block, i)         quants 4 i to 4 i + 3, the first in the lowest byte: as they stand, a register of an
//                                      int8 mma fragment or an operand of dp4a
//   float scale(block, g)              of values g kScaleElems and on
//   float offset(block, g)             the same; only if kOffset
//   uint32_t half_point(block, k, h)   quants4(block, 2 k + h), in types with points of eight values
//
// values() below puts them together in f32 with the roundings of the format's reference: a product and a sum round
// separately. Types of single values (F32, F16, BF16) have values() alone; see scalars.cuh.
//
// Blocks may lie in shared or global memory. The first of a tensor is aligned to 16, so each is to kBlockAlign.
#pragma once
#include "intrin.cuh"

template <class Block> struct decode;

// The largest power of two, up to 16, that divides the size of a block: how blocks in a row are aligned.
template <class Block>
constexpr int kBlockAlign = (sizeof(Block) & -sizeof(Block)) < 16 ? static_cast<int>(sizeof(Block) & -sizeof(Block)) : 16;

// `T` at `p`, which is aligned to kAlign.
template <class T, int kAlign> INTRIN T load_aligned(const void *p) {
    static_assert(kAlign > 0 && (kAlign & (kAlign - 1)) == 0, "a power of two");
    T value;
    if constexpr (kAlign >= sizeof(T)) {
        memcpy(&value, __builtin_assume_aligned(p, sizeof(T)), sizeof(T));
    } else { // in pieces as large as the alignment allows
        struct pieces {
            unsigned char bytes[kAlign];
        } piece[sizeof(T) / kAlign];
        for (int i = 0; i < static_cast<int>(sizeof(T)) / kAlign; ++i)
            memcpy(&piece[i], __builtin_assume_aligned(static_cast<const unsigned char *>(p) + i * kAlign, kAlign), kAlign);
        memcpy(&value, piece, sizeof(T));
    }
    return value;
}

// Four bytes at `p`, a place in a Block that is a multiple of 4 bytes from the start of its field.
template <class Block> INTRIN uint32_t word(const void *p) { return load_aligned<uint32_t, kBlockAlign<Block>>(p); }

// Four bytes at a time ---------------------------------------------------------------------------------------------------

// Bytes minus kOffset, for bytes up to 127 + kOffset that give an int8.
template <int kOffset> INTRIN uint32_t minus4(uint32_t bytes) {
    // Biased by 128 no byte borrows from the next.
    return (bytes + (128u - kOffset) * 0x01010101u) ^ 0x80808080u;
}

// Four indices of 2 bits to the nibbles of a selector of prmt.
INTRIN uint32_t selector4(uint32_t indices) {
    indices = (indices | indices << 4) & 0x0f0fu;
    return (indices | indices << 2) & 0x3333u;
}

// Bit k of four to the lowest bit of byte k.
INTRIN uint32_t spread_bits4(uint32_t bits) { return (bits & 15) * 0x00204081u & 0x01010101u; }

// Bytes of 1 to 127, negated where bit k of `signs` is set.
INTRIN uint32_t negate4(uint32_t bytes, uint32_t signs) {
    const uint32_t ones = spread_bits4(signs);
    return (bytes ^ ones * 0xffu) + ones; // no carry, as no byte is zero
}

// Entry k of sixteen signed bytes for each low nibble k of `nibbles`. `levels` holds them in order, four to a word.
INTRIN uint32_t lookup16(uint32_t nibbles, const uint32_t (&levels)[4]) {
    uint32_t k = nibbles & 0x0f0f0f0fu;
    k |= k >> 4;
    k = __byte_perm(k, 0, 0x4420); // the four nibbles as a selector
    const uint32_t low = __byte_perm(levels[0], levels[1], k & 0x7777u);
    const uint32_t high = __byte_perm(levels[2], levels[3], k & 0x7777u);
    return __byte_perm(low, high, 0x3210u | (k & 0x8888u) >> 1);
}

// Signs of eight values from seven bits: the eighth makes their number even.
INTRIN uint32_t even_signs(uint32_t seven) { return seven | (__popc(seven) & 1u) << 7; }

INTRIN uint32_t nibble(const uint8_t *bytes, int i) { return bytes[i / 2] >> (i % 2 * 4) & 15u; }

// Values -----------------------------------------------------------------------------------------------------------------

// What kScaleElems values share. Types of single values have none.
template <bool kOffset> struct scale_and_offset {
    float scale;
};
template <> struct alignas(8) scale_and_offset<true> {
    float scale, offset;
};
template <class Block, class = void> struct scale_of_type {
    using type = void;
    static constexpr bool kDecoded = false;
};
template <class Block> struct scale_of_type<Block, decltype(void(decode<Block>::kOffset))> {
    using type = scale_and_offset<decode<Block>::kOffset>;
    static constexpr bool kDecoded = decode<Block>::kElems > decode<Block>::kScaleElems;
};
template <class Block> using scale_t = typename scale_of_type<Block>::type;

// Whether a scale takes so many instructions that lanes better share it: not if it is a field of the block as it stands.
template <class Block> constexpr bool kScaleDecoded = scale_of_type<Block>::kDecoded;

// Of values g kScaleElems and on of a row of blocks.
template <class Block> INTRIN scale_t<Block> scale_at(const Block *blocks, unsigned g) {
    using type = decode<Block>;
    constexpr unsigned kScales = type::kElems / type::kScaleElems;
    const Block &block = blocks[g / kScales];
    if constexpr (type::kOffset) return {type::scale(block, g % kScales), type::offset(block, g % kScales)};
    else return {type::scale(block, g % kScales)};
}

// Types with points of eight values tell half a point, so that the compiler sees what the two halves share.
template <class Type, class = void> constexpr bool kHasPoints = false;
template <class Type> constexpr bool kHasPoints<Type, decltype(void(&Type::half_point))> = true;

// Values `first` to first + kN - 1 of a row of blocks, which have this scale; first is a multiple of kN.
template <class Block, int kN>
INTRIN void values(const Block *blocks, unsigned first, scale_t<Block> shared, float (&out)[kN]) {
    using type = decode<Block>;
    static_assert(kN % 4 == 0 && type::kScaleElems % kN == 0, "one scale for all of them");
    const Block &block = blocks[first / type::kElems];
    const unsigned at = first % type::kElems;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
        uint32_t quants;
        if constexpr (kHasPoints<type> && kN % 8 == 0) quants = type::half_point(block, at / 8 + i / 2, i % 2);
        else quants = type::quants4(block, at / 4 + i);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const float product = __fmul_rn(shared.scale, s8_to_f32(quants, k));
            // Without an offset nothing is added: -0 + 0 would be another zero.
            if constexpr (type::kOffset) out[4 * i + k] = __fadd_rn(product, shared.offset);
            else out[4 * i + k] = product;
        }
    }
}

// The same with a scale that is decoded for them.
template <class Block, int kN> INTRIN void values(const Block *blocks, unsigned first, float (&out)[kN]) {
    values(blocks, first, scale_at(blocks, first / decode<Block>::kScaleElems), out);
}
