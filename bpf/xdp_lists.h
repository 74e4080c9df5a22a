/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Long lists: lookups of which the cost does not grow with the list. fwtop/collect/xdp_lists.py fills them. */
#ifndef FWTOP_XDP_LISTS_H
#define FWTOP_XDP_LISTS_H

#include "xdp.h"

/* IPv4: two bits for every /24: none of it (0), all of it (1), or look at its 256 bits (2). These are
 * found by rank: `ranks` says how many such /24s there are before each word of 32, the rest is counted here. */
#define LIST4_WORDS (1 << 19)

INLINE u64 pairs_set(u64 pairs)
{
	u64 sums = (pairs & 0x3333333333333333ULL) + (pairs >> 2 & 0x3333333333333333ULL);

	return ((sums + (sums >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56;
}

INLINE u32 in_list4(u64 *blocks, u64 *parts, u64 count, u64 address)
{
	u64 word = address >> 13, shift = (address >> 8 & 31) * 2, states, place;
	u32 *ranks = (u32 *)(blocks + LIST4_WORDS);

	word &= LIST4_WORDS - 1;
	OPAQUE(word);
	word &= LIST4_WORDS - 1;
	states = blocks[word];
	if ((states >> shift & 3) < 2)
		return states >> shift & 3;
	place = ranks[word] + pairs_set((states & ((1ULL << shift) - 1)) >> 1 & 0x5555555555555555ULL);
	place = place * 4 + (address >> 6 & 3);
	OPAQUE(place);
	return place < count * 4 ? parts[place] >> (address & 63) & 1 : 0;
}

/* IPv6: a bit for the hash of the first 32 address bits, before any of the exact lookups. */
INLINE u32 may_list6(u64 *filter, u64 hi)
{
	u32 bit = (u32)(hi >> 32) * 0x9e3779b1u >> 8;
	u64 word = bit >> 6;

	OPAQUE(word);
	word &= 0x3ffff;
	return filter[word] >> (bit & 63) & 1;
}

struct list6_key {
	u64 hi, lo, length;
};

INLINE u32 in_list6(void *prefixes, u64 hi, u64 lo, u64 length)
{
	struct list6_key key = {hi, lo, length};

	return bpf_map_lookup_elem(prefixes, &key) != NULL;
}

#endif
