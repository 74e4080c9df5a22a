/* SPDX-License-Identifier: GPL-2.0-or-later */
/* bcc writes the number into the object; kernels since 5.0 ignore it. */
#ifndef LINUX_VERSION_CODE
#define LINUX_VERSION_CODE 0
#endif
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
