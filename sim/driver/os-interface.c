// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Services of Linux for the RM. The closed part of the real driver imports these symbols, so they are out of line and
 * traceable there and here.
 */
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "sim.h"

noinline NV_STATUS os_memcpy_from_user(void *to, const void *from, NvU32 n)
{
	return copy_from_user(to, (const void __user *)from, n) ? NV_ERR_INVALID_ADDRESS : NV_OK;
}

noinline NV_STATUS os_memcpy_to_user(void *to, const void *from, NvU32 n)
{
	return copy_to_user((void __user *)to, from, n) ? NV_ERR_INVALID_ADDRESS : NV_OK;
}

#if SIM_HAS_NS_PID
noinline void *os_get_pid_info(void)
{
	return get_task_pid(current, SIM_PID_IS_LEADER ? PIDTYPE_TGID : PIDTYPE_PID);
}

noinline void os_put_pid_info(void *pid_info)
{
	if (pid_info)
		put_pid(pid_info);
}

noinline NV_STATUS os_find_ns_pid(void *pid_info, NvU32 *ns_pid)
{
	if (!pid_info || !ns_pid)
		return NV_ERR_INVALID_ARGUMENT;
	*ns_pid = pid_vnr(pid_info);
	return *ns_pid ? NV_OK : NV_ERR_OBJECT_NOT_FOUND;
}
#endif

#if SIM_HAS_INIT_NS
noinline NvBool os_is_init_ns(void)
{
	return task_active_pid_ns(current) == &init_pid_ns;
}
#endif
