/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Access to kernel structures and to maps.
 *
 * bcc neither relocates structure members nor knows newer program types. So the loader passes the offsets of
 * members from the running kernel's BTF as -D, creates the maps, replaces map numbers in the byte code by
 * descriptors, and loads the code itself (fwtop/kernel/bpf.py). Loads are inline assembly, which bcc's rewriter
 * leaves alone: in BTF-typed programs the verifier checks each against the structure and makes it safe against
 * bad pointers, at the cost of one instruction.
 */
#ifndef FWTOP_KERNEL_H
#define FWTOP_KERNEL_H

#define PROGRAM(name) __attribute__((section(".bpf.fn." #name), used))
#define INLINE static __attribute__((always_inline)) inline

#define LOAD_(type, out, pointer, offset)                                                          \
	({                                                                                         \
		out value_;                                                                        \
		asm volatile("%0 = *(" #type " *)(%1 + %2)"                                        \
			     : "=r"(value_)                                                        \
			     : "r"(pointer), "i"(offset));                                         \
		value_;                                                                            \
	})
#define LOAD8(pointer, offset) LOAD_(u8, u64, pointer, offset)
#define LOAD16(pointer, offset) LOAD_(u16, u64, pointer, offset)
#define LOAD32(pointer, offset) LOAD_(u32, u64, pointer, offset)
#define LOAD64(pointer, offset) LOAD_(u64, u64, pointer, offset)

/* 1: the map, for helpers; 2: the address of an array map's value, without a lookup. */
#define MAP(descriptor) ((void *)bpf_pseudo_fd(1, descriptor))
#define MAP_VALUE(descriptor) ((void *)bpf_pseudo_fd(2, descriptor))
/* A number that the loader fills in, so that the compiled code doesn't depend on it: see `relocate`. */
#define CONSTANT(number) ((u64)bpf_pseudo_fd(15, number))

/* Keeps the compiler from deriving later uses from an earlier copy of `value`: the verifier must see that a
 * bounds check applies to the very register that is used. */
#define OPAQUE(value) asm volatile("" : "+r"(value))

#endif
