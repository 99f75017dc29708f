/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The interface between the module's C code and its Rust core. crates/mpu-kmod declares the same in Rust, and its test fails on any
 * difference: `cargo test -p mpu-kmod`.
 *
 * `call`: MPU_CALL_BYTES of memory, which mpu_rs_begin() fills if it returns any bit. `requested`: memory for `requested_count` PIDs, or
 * NULL. `view`: the caller's struct mpu_view. Counters are indexes below MPU_COUNTERS, or MPU_NOT_COUNTED.
 */
#ifndef MPU_CORE_H
#define MPU_CORE_H

#include <linux/types.h>

#define MPU_CALL_BYTES 96
/* Memory that mpu_rs_policy_read() fills; aligned as a u32. */
#define MPU_POLICY_BYTES 516
/* At least as many as there are: first the counters of translations, then those of reasons. */
#define MPU_COUNTERS 32
#define MPU_NOT_COUNTED 0xffffffffu

/* Bits of mpu_rs_begin(). MPU translates the call. */
#define MPU_TRANSLATES 1u
/* The driver would look up processes by references that it may have dropped. */
#define MPU_SAMPLES 2u
/* The driver hides records of ended processes from callers outside the init namespace, and must continue to. */
#define MPU_HIDES_DEAD 4u
/* Not from mpu_rs_begin(): the call fetches an event, which mpu_rs_event() translates. */
#define MPU_EVENT 8u

/* Which processes a caller sees; 0: not evaluated yet. */
#define MPU_SEES_OWN 1u
#define MPU_SEES_GROUP 2u
#define MPU_SEES_HOST 3u

/* For mpu_rs_reason(). */
enum mpu_reason {
	MPU_REASON_UNKNOWN_SIZE,
	MPU_REASON_NO_MEMORY,
	MPU_REASON_UNREADABLE,
	MPU_REASON_MALFORMED,
	MPU_REASON_ARGUMENT_NOT_SEEN,
	MPU_REASON_COPY_NOT_SEEN,
	MPU_REASON_EXEMPT,
	MPU_REASON_OUT_OF_REACH,
	MPU_REASON_PROBE_PENDING,
};

/* The argument of an RM control (NVOS54_PARAMETERS) from its ninth byte on. */
struct mpu_argument {
	u32 cmd;
	u32 flags;
	u64 params;
	u32 params_size;
	u32 status;
};

/* How many bytes are copied to the caller. `refused`: none, and the caller gets the error for a missing process. */
struct mpu_copy {
	u32 bytes;
	bool refused;
};

bool mpu_rs_may_carry_pids(u32 cmd);
u32 mpu_rs_begin(void *call, const struct mpu_argument *argument, u32 *counter);
u32 mpu_rs_requested_count(const void *call, u64 address, const void *bytes, u32 len);
void mpu_rs_copied_in(void *call, u64 address, void *bytes, u32 len, u32 *requested, u32 requested_count, const void *view);
u32 mpu_rs_copying_out(void *call, u64 address, void *bytes, u32 len, const u32 *requested, u32 requested_count, const void *view,
		       struct mpu_copy *copy);
u32 mpu_rs_event(void *bytes, u32 len, const void *view);
bool mpu_rs_copy_missing(const void *call);
u32 mpu_rs_reason(u32 reason);
u32 mpu_rs_policy_read(void *table, const u8 *rules, u32 len);
u32 mpu_rs_policy(const void *table, const u8 *rules, u32 len, const u8 *path, u32 path_len, u32 *depth);
const char *mpu_rs_counter_name(u32 counter, u32 *len, bool *passed);

/* Called by mpu_rs_copied_in(), mpu_rs_copying_out() and mpu_rs_event(), under RCU. In mpu_pids.c. */
u32 mpu_c_view_of(const void *view, u32 host);
u32 mpu_c_host_of(const void *view, u32 pid);
u64 mpu_c_started(u32 host);

#endif
