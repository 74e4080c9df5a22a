/* SPDX-License-Identifier: GPL-2.0-or-later */
/* All that bcc needs of a kernel's headers: the plain types. bcc includes this file first. */
#ifndef FWTOP_KCONFIG_H
#define FWTOP_KCONFIG_H

#define CONFIG_BPF_SYSCALL 1

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef short s16;
typedef int s32;
typedef long long s64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s8 __s8;
typedef s16 __s16;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u64 __be64;
typedef u16 __le16;
typedef u32 __le32;
typedef u64 __le64;
typedef u64 __aligned_u64 __attribute__((aligned(8)));
typedef u16 __sum16;
typedef u32 __wsum;
typedef unsigned long size_t;
typedef unsigned long uintptr_t;
typedef _Bool bool;

#define true 1
#define false 0
#define NULL ((void *)0)
#define PAGE_SIZE 4096
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif

#endif
