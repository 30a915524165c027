// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// tenant writes what it finds and what it could do. It only looks with what the shell has in
// itself, since in the end it cannot start a program.
const tenant = `
cd /sys/fs/cgroup
for file in memory.max memory.swap.max pids.max cpu.max /proc/self/cgroup; do read -r value <$file; echo "$file $value"; done
for file in cgroup.procs cgroup.kill cgroup.freeze cgroup.subtree_control memory.max memory.pressure cpu.pressure; do
  (echo 1 >$file) 2>/dev/null && echo "wrote $file"
done
mkdir own 2>/dev/null && echo "made a group"
mount -o remount,rw /sys/fs/cgroup 2>/dev/null && echo "could write to all"
mkdir /cg && mount -t cgroup2 none /cg 2>/dev/null && echo "mounted it again"
read -r some rest <memory.pressure && echo "pressure $some"
tail /dev/zero || echo "child ended by $?"
while read -r key value; do [ $key != oom_kill ] || echo "kills $value"; done <memory.events
(n=0; while [ $n -lt 50 ]; do sleep 1000 & n=$((n+1)); done) 2>/dev/null || echo "starts no more"
read -r key value <pids.events; [ "$value" -gt 0 ] && echo "counted"
echo done
exec sleep 1000
`

// testControlGroups tries what docs/driver.md and docs/security.md say of a task's control group:
// its limits, swap among them; a tenant that tries to change it; and one that may do
// everything, and hides programs in groups of its own, one of them frozen.
func testControlGroups(ctx context.Context, l *lane) {
	l.run(ctx, "[ -e /swap ] || { fallocate -l 256M /swap; chmod 600 /swap; mkswap -q /swap; swapon /swap; }")
	l.submit(ctx, groupJob("tenant", "cpu_hard_limit = true\nmemory_swap = \"32M\"\npids_limit = 30", tenant))
	l.prints(ctx, "tenant", `memory.max 67108864
memory.swap.max 33554432
pids.max 30
cpu.max 40000 100000
/proc/self/cgroup 0::/
pressure some
child ended by 137
kills 1
starts no more
counted
done`)
	l.gone(ctx, "tenant")

	l.submit(ctx, groupJob("nested", "privileged = true", `
mkdir /cg && mount -t cgroup2 none /cg && mkdir /cg/main /cg/frozen
sleep 1000 & echo $! >/cg/frozen/cgroup.procs
echo $$ >/cg/main/cgroup.procs
echo +memory >/cg/cgroup.subtree_control
echo 1 >/cg/frozen/cgroup.freeze
(tail /dev/zero) || echo "child ended by $?"
read -r value </proc/self/cgroup; echo "$value"
sleep 1000`))
	l.prints(ctx, "nested", "child ended by 137\n0::/main")
	l.gone(ctx, "nested")

	// The kernel's kill in a group below the task's is the task's.
	l.submit(ctx, groupJob("nested", "privileged = true", `
mkdir /cg && mount -t cgroup2 none /cg && mkdir /cg/main
echo $$ >/cg/main/cgroup.procs
exec tail /dev/zero`))
	l.eventually(ctx, "a task that was out of memory in a group of its own says so", func() (bool, string) {
		said := l.said(ctx, "nested")
		return strings.Contains(said, "OOM Killed"), said
	})
	l.gone(ctx, "nested")
}

func groupJob(name, config, script string) string {
	return fmt.Sprintf(`
job %[1]q {
  group "group" {
    reschedule {
      attempts  = 0
      unlimited = false
    }
    restart { attempts = 0 }
    task %[1]q {
      driver = "containerd"
      config {
        image      = "localhost/tools:1"
        entrypoint = ["sh", "/local/script"]
        %[2]s
      }
      template {
        destination = "local/script"
        data        = <<EOT
%[3]s
EOT
      }
      resources {
        cpu    = 4000
        memory = 64
      }
    }
  }
}`, name, config, script)
}

// prints waits for a job's output.
func (l *lane) prints(ctx context.Context, job, want string) {
	l.Helper()
	alloc := l.running(ctx, job)
	last := want[strings.LastIndex(want, "\n")+1:]
	l.eventually(ctx, job+" prints its last line", func() (bool, string) {
		out, err := l.Exec(ctx, "nomad alloc logs "+alloc.ID)
		if err != nil || !strings.HasSuffix(out, last) {
			return false, out + "\n" + l.said(ctx, job)
		}
		if out != want {
			l.Errorf("%s prints\n%s\nwant\n%s", job, out, want)
		}
		return true, ""
	})
}

// said is what Nomad tells of a job's tasks.
func (l *lane) said(ctx context.Context, job string) string {
	stubs, _, err := l.cluster.API.Jobs().Allocations(job, true, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return err.Error()
	}
	said := ""
	for _, stub := range stubs {
		for _, state := range stub.TaskStates {
			for _, e := range state.Events {
				said += e.DisplayMessage + "\n"
			}
		}
	}
	return said
}

// gone stops a job, after which nothing of it may be left: no process, no group.
func (l *lane) gone(ctx context.Context, job string) {
	l.Helper()
	l.stops(ctx, []string{job})
	l.eventually(ctx, "nothing is left of "+job, func() (bool, string) {
		out, err := l.Exec(ctx, "find /sys/fs/cgroup/nomad.slice -name '"+job+"-*' -exec sh -c 'echo {}; cat {}/cgroup.procs' ';'; ctr -n nomad-gpu containers ls | grep '^"+job+"-' || true")
		return err == nil && out == "", out
	})
	if _, _, err := l.cluster.API.Jobs().Deregister(job, true, nil); err != nil {
		l.Error(err)
	}
}
