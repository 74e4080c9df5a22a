/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Empty on purpose: bcc includes it, and what fwtop uses of it is elsewhere. */
