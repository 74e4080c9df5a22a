/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Lookups in long lists, at a constant cost. fwtop/xdp/lists.py fills the maps. */
#ifndef FWTOP_XDP_LISTS_H
#define FWTOP_XDP_LISTS_H

#include "xdp.h"

/* IPv4: two bits for every /24. Partly listed /24s have 256 bits more, one for each address, found by rank: `ranks`
 * holds the number of such /24s before each word of 32, the rest is counted here. */
enum { NOTHING_LISTED, ALL_FIRST, PART_LISTED, ALL_NEXT };

#define LIST4_WORDS (1 << 19)
#define EVEN_BITS 0x5555555555555555ULL

INLINE u64 list4_word(u64 address)
{
	u64 word = address >> 13 & (LIST4_WORDS - 1);

	OPAQUE(word);
	return word & (LIST4_WORDS - 1);
}

/* Population count of the even bits. */
INLINE u64 evens_set(u64 evens)
{
	u64 sums = (evens & 0x3333333333333333ULL) + (evens >> 2 & 0x3333333333333333ULL);

	return ((sums + (sums >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56;
}

INLINE u64 part4(u64 *blocks, u64 word, u64 states, u64 shift)
{
	u32 *ranks = (u32 *)(blocks + LIST4_WORDS);

	return ranks[word] + evens_set((states & ((1ULL << shift) - 1)) >> 1 & ~states & EVEN_BITS);
}

INLINE u32 in_list4(u64 *blocks, u64 *parts, u64 count, u64 address)
{
	u64 word = list4_word(address), shift = (address >> 8 & 31) * 2, states = blocks[word], place;

	if ((states >> shift & 3) != PART_LISTED)
		return states >> shift & 3;
	place = part4(blocks, word, states, shift) * 4 + (address >> 6 & 3);
	OPAQUE(place);
	return place < count * 4 ? parts[place] >> (address & 63) & 1 : 0;
}

/* A list of many millions without numbers. Of /24s with up to four listed addresses, the last bytes of these are in a
 * word of 32 bits; of those with /25s to /29s alone, a bit for each /29. Behind these words, a bit for each says which
 * it is. Two tables of ranks follow the states: of /24s with 256 bits, and of those with such a word. */
enum { ALL_LISTED = 1, SMALL_LISTED = 3 };

INLINE u32 in_uncounted4(u64 *blocks, u64 *parts, u64 count, u32 *small, u64 small_count, u64 address)
{
	u64 word = list4_word(address), shift = (address >> 8 & 31) * 2, states = blocks[word], before, place, kinds;
	u32 *ranks = (u32 *)(blocks + LIST4_WORDS), state = states >> shift & 3, differing;

	before = states & ((1ULL << shift) - 1);
	if (state == SMALL_LISTED) {
		place = ranks[LIST4_WORDS + word] + evens_set(before >> 1 & before & EVEN_BITS);
		OPAQUE(place);
		if (place >= small_count)
			return 0;
		kinds = place >> 5;
		OPAQUE(kinds); /* LLVM 19 would mask a byte offset, whose bound the verifier then takes for 3 more */
		if (small[small_count + kinds] >> (place & 31) & 1)
			return small[place] >> (address >> 3 & 31) & 1;
		differing = small[place] ^ (u32)(address & 255) * 0x01010101;
		return (differing - 0x01010101 & ~differing & 0x80808080) != 0; /* whether a byte is 0 */
	}
	if (state != PART_LISTED)
		return state;
	place = (ranks[word] + evens_set(before >> 1 & ~before & EVEN_BITS)) * 4 + (address >> 6 & 3);
	OPAQUE(place);
	return place < count * 4 ? parts[place] >> (address & 63) & 1 : 0;
}

/* Addresses with ports: a trie, so that the key's bytes stand in network order. IPv4 is in the first 4 of the address. */
struct ports_key {
	u32 bits;
	u8 family, protocol;
	u16 port;
	u64 hi, lo;
};

INLINE u32 in_ports(void *trie, u32 family, u32 protocol, u32 port, u64 hi, u64 lo)
{
	struct ports_key key = {family == 4 ? 64 : 160, family, protocol, __builtin_bswap16(port), 0, 0};

	key.hi = __builtin_bswap64(family == 4 ? lo << 32 : hi);
	key.lo = family == 4 ? 0 : __builtin_bswap64(lo);
	return bpf_map_lookup_elem(trie, &key) != 0;
}

/* Prefix numbers of a partly listed /24: its first prefix's number and, if it has several prefixes, the index (from
 * 1) of the 256 bits that mark where each begins. */
struct part_number {
	u32 first, several; /* 0: only one prefix */
};

INLINE u64 begun4(u64 *begins, u64 address)
{
	u64 last = (2ULL << (address & 63)) - 1, found = 0;

#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		u64 mask = i < (address >> 6 & 3) ? ~0ULL : i == (address >> 6 & 3) ? last : 0;
		u64 bits = begins[i] & mask;

		found += evens_set(bits - (bits >> 1 & EVEN_BITS));
	}
	return found;
}

/* The prefix number of a listed address. `wholes`: prefixes of /24 or shorter that begin before each word. */
INLINE u64 number4(u64 *blocks, u32 *wholes, u64 parts, u64 several, u64 address)
{
	u64 word = list4_word(address), shift = (address >> 8 & 31) * 2, states = blocks[word], place, more;
	struct part_number *part = (struct part_number *)(wholes + LIST4_WORDS);

	if ((states >> shift & 3) != PART_LISTED)
		return wholes[word] + evens_set(states & ~(states >> 1) & EVEN_BITS & ((2ULL << shift) - 1)) - 1;
	place = part4(blocks, word, states, shift);
	OPAQUE(place);
	if (place >= parts)
		return 0;
	more = part[place].several;
	OPAQUE(more);
	if (more == 0 || more > several)
		return part[place].first;
	return part[place].first + begun4((u64 *)(part + parts) + (more - 1) * 4, address) - 1;
}

/* IPv6: a filter of one bit for each hash of the first 32 address bits precedes the exact lookups. */
#define LIST6_FILTER_WORDS (1 << 18)

INLINE u32 may_list6(u64 *filter, u64 hi)
{
	u32 bit = (u32)(hi >> 32) * 0x9e3779b1u >> 8;
	u64 word = bit >> 6;

	OPAQUE(word);
	word &= LIST6_FILTER_WORDS - 1;
	return filter[word] >> (bit & 63) & 1;
}

/* Open addressing with linear probing for prefixes of one length: `most` places from the upper bits of `product`,
 * of which `shift` drops the others; `empty` is the key of free places. */
#define ABSENT (~0ULL)

INLINE u64 place6(u64 *keys, u64 product, u64 shift, u64 most, u64 key, u64 empty)
{
	u64 place = product >> shift;

	for (u64 i = 0; i < most; i++, place++) {
		u64 found = keys[place];

		if (found == empty)
			return ABSENT;
		if (found == key)
			return place;
	}
	return ABSENT;
}

/* For prefixes longer than /64: keys of two words. */
INLINE u64 wide_place6(u64 *keys, u64 product, u64 shift, u64 most, u64 hi, u64 lo, u64 empty_hi, u64 empty_lo)
{
	u64 place = product >> shift;

	for (u64 i = 0; i < most; i++, place++) {
		u64 found_hi = keys[2 * place], found_lo = keys[2 * place + 1];

		if (found_hi == empty_hi && found_lo == empty_lo)
			return ABSENT;
		if (found_hi == hi && found_lo == lo)
			return place;
	}
	return ABSENT;
}

/* Count a rule's dropped packets by prefix number. Each CPU accumulates the counts of its recent prefixes, so that
 * CPUs don't contend for cache lines in a flood; readers must add these pending counts. */
#define PENDING 64

struct pending {
	u64 number, packets;
};

INLINE void count_prefix(void *hits, u64 count, u64 number, u64 packets)
{
	u64 *counters = hits + FWTOP_CPUS * PENDING * sizeof(struct pending), place, before, earlier;
	struct pending *pending = hits;

	place = bpf_get_smp_processor_id() * PENDING + (number & (PENDING - 1));
	OPAQUE(place);
	if (place >= FWTOP_CPUS * PENDING)
		return;
	pending += place;
	before = pending->number;
	earlier = pending->packets;
	if (before == number) {
		pending->packets = earlier + packets;
		return;
	}
	OPAQUE(before);
	if (earlier && before < count)
		__sync_fetch_and_add(counters + before, earlier);
	pending->number = number;
	pending->packets = packets;
}

#endif
