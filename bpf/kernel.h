/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How fwtop's programs reach the kernel's structures and their own maps.
 *
 * bcc neither relocates members nor knows newer program types, so: members are read at offsets that the
 * loader takes from the running kernel's BTF and passes as -D; maps are created by the loader, which puts
 * their descriptors where the byte code names them by number, and loads it itself (fwtop/collect/bpf.py). The loads are inline
 * assembly so that bcc's rewriter leaves them alone: in BTF-typed programs the verifier checks each against
 * the structure and makes it safe against bad pointers, at the cost of one instruction.
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

/* 1: the map itself, for helpers; 2: the address of an array map's first value, without a lookup. */
#define MAP(descriptor) ((void *)bpf_pseudo_fd(1, descriptor))
#define MAP_VALUE(descriptor) ((void *)bpf_pseudo_fd(2, descriptor))
/* A number that the loader knows when it loads, so that code for another one is the same: see `relocate`. */
#define CONSTANT(number) ((u64)bpf_pseudo_fd(15, number))

/* What follows is computed from `value` as it is now: a check of it then holds for its use, which the verifier
 * wants to see and the optimiser likes to hide. */
#define OPAQUE(value) asm volatile("" : "+r"(value))

#endif
