/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The Rust core as the glue calls it; crates/mpu-kmod says the same in Rust and asserts the sizes.
 *
 * `call` is MPU_CALL_BYTES of storage that mpu_rs_begin() fills when it returns any bit, or NULL for a call without PIDs;
 * `asked` is room for what mpu_rs_questions() says, or NULL; `view` is the caller's struct mpu_view. Counters are indexes below
 * MPU_COUNTERS, or MPU_NOT_COUNTED.
 */
#ifndef MPU_CORE_H
#define MPU_CORE_H

#include <linux/types.h>

#define MPU_CALL_BYTES 96
#define MPU_COUNTERS 20
#define MPU_NOT_COUNTED 0xffffffffu

/* Bits of mpu_rs_begin(). */
#define MPU_TRANSLATES 1u
#define MPU_SMALL 2u

/* Copies from this size on are told by their size alone. */
#define MPU_TELLING_SIZE 2436u

/* What a caller sees: 0 is "not looked up yet". */
#define MPU_SEES_OWN 1u
#define MPU_SEES_GROUP 2u
#define MPU_SEES_HOST 3u

bool mpu_rs_may_claim(u32 cmd);
u32 mpu_rs_begin(void *call, u32 cmd, u32 params_size, u32 *counter);
u32 mpu_rs_pass(void *call);
u32 mpu_rs_questions(const void *call, const void *bytes, u32 len);
void mpu_rs_copied_in(void *call, void *bytes, u32 len, u32 *asked, u32 questions, const void *view);
u32 mpu_rs_copying_out(void *call, u64 address, void *bytes, u32 len, const u32 *asked, u32 questions, const void *view);
bool mpu_rs_copy_missing(const void *call);
u32 mpu_rs_copy_not_seen(void);
u32 mpu_rs_unreadable(void);
u32 mpu_rs_exempt(void);
u32 mpu_rs_no_memory(void);
u32 mpu_rs_policy_check(const u8 *rules, u32 len);
u32 mpu_rs_policy(const u8 *rules, u32 len, const u8 *path, u32 path_len, u32 *depth);
const char *mpu_rs_counter_name(u32 counter, u32 *len, bool *passed);

/* What the core asks of the kernel, under RCU, from mpu_rs_copied_in() and mpu_rs_copying_out(): see mpu_pids.c. */
u32 mpu_c_view_of(const void *view, u32 host);
u32 mpu_c_host_of(const void *view, u32 pid);

#endif
