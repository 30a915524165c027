// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"fmt"
	"maps"
	"strings"
)

// testPackages puts the packages in the place of what was copied by hand. What they do
// while tasks run, tasks do not notice; a purge leaves nothing behind, but never under
// tasks that run.
func testPackages(ctx context.Context, l *lane) {
	l.survives(ctx, installPackages(firstRelease)+`
sed -i 's|^plugin_dir .*|plugin_dir = "/opt/nomad/plugins"|' /etc/nomad.d/nomad.hcl
nomad-device-gpu validate /etc/nomad.d
nomad-driver-containerd validate /etc/nomad.d
nomad-gpu-scheduler validate /etc/nomad-gpu/scheduler.hcl
systemctl restart nomad
systemctl enable --now nomad-gpu-scheduler`)
	l.runsFrom(ctx, "/opt/nomad/plugins/")
	l.serves(ctx)

	first := l.run(ctx, "systemctl show -p MainPID nomad-gpu-scheduler")
	l.run(ctx, "echo '# the operator changed this' >>/etc/nomad-gpu/scheduler.hcl")
	l.survives(ctx, installPackages(nextRelease)+"\nsystemctl restart nomad")
	l.runsFrom(ctx, "/opt/nomad/plugins/")
	l.serves(ctx)
	if next := l.run(ctx, "systemctl show -p MainPID nomad-gpu-scheduler"); next == first {
		l.Errorf("after an upgrade the placement service is still %s", next)
	}
	l.run(ctx, "grep -q 'the operator changed this' /etc/nomad-gpu/scheduler.hcl")

	l.removes(ctx)
	l.survives(ctx, installPackages(nextRelease)+"\nsystemctl restart nomad")
	l.purges(ctx, resident, "nomad-gpu-plugins", "nomad-gpu-scheduler")
}

// installPackages is a script that installs a release as docs/install.md says, from files.
func installPackages(version string) string {
	return "DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends /opt/gpu/packages/*_" + version + "_*.deb </dev/null"
}

// runsFrom checks that both plugins that run are the programs of a folder, and not
// programs that were replaced there.
func (l *lane) runsFrom(ctx context.Context, folder string) {
	l.Helper()
	for _, plugin := range []string{"nomad-device-gpu", "nomad-driver-containerd"} {
		l.eventually(ctx, plugin+" runs from "+folder, func() (bool, string) {
			out, err := l.Exec(ctx, `for pid in $(pgrep -P $(systemctl show -p MainPID --value nomad)); do readlink /proc/$pid/exe || true; done`)
			return err == nil && strings.Contains(out+"\n", folder+plugin+"\n"), out
		})
	}
}

// serves waits until the placement service's unit runs, and shows the node's GPUs.
func (l *lane) serves(ctx context.Context) {
	l.Helper()
	l.eventually(ctx, "the placement service shows the node's GPUs", func() (bool, string) {
		out, err := l.Exec(ctx, "systemctl is-active nomad-gpu-scheduler; nomad-gpu-scheduler status")
		return err == nil && strings.Contains(out, "gpu-node") && strings.Contains(out, "H100"), out
	})
}

// removes removes the packages while tasks run, and then tries to purge them.
func (l *lane) removes(ctx context.Context) {
	l.Helper()
	before := l.pids(ctx)
	out := l.run(ctx, `export DEBIAN_FRONTEND=noninteractive
apt-get remove -q -y nomad-gpu-plugins nomad-gpu-scheduler </dev/null
[ ! -e /opt/nomad/plugins/nomad-device-gpu ] && [ ! -e /opt/nomad/plugins/nomad-driver-containerd ] && [ ! -e /usr/bin/nomad-gpu-scheduler ]
[ "$(systemctl is-active nomad-gpu-scheduler)" != active ]
grep -q 'the operator changed this' /etc/nomad-gpu/scheduler.hcl
ls -d /var/lib/nomad-gpu /run/nomad-gpu
apt-get purge -q -y nomad-gpu-plugins nomad-gpu-scheduler </dev/null
ls -d /var/lib/nomad-gpu /run/nomad-gpu
[ ! -e /etc/nomad-gpu ]`)
	if want := fmt.Sprintf("%d containers of Nomad tasks run", len(resident)); !strings.Contains(out, want) {
		l.Errorf("a purge under tasks does not say %q:\n%s", want, out)
	}
	if after := l.pids(ctx); !maps.Equal(before, after) {
		l.Errorf("before the removal there were %v,\nafter it  there are %v", before, after)
	}
}

// stops ends jobs, and returns when their tasks have ended.
func (l *lane) stops(ctx context.Context, jobs []string) {
	l.Helper()
	for _, job := range jobs {
		stop, cancel := within(ctx)
		if err := l.cluster.Stop(stop, job); err != nil {
			l.Error(err)
		}
		cancel()
	}
}

// purges ends the jobs and purges the packages, and checks that nothing of ours is left.
func (l *lane) purges(ctx context.Context, jobs []string, packages ...string) {
	l.Helper()
	l.stops(ctx, jobs)
	l.run(ctx, `systemctl stop nomad
DEBIAN_FRONTEND=noninteractive apt-get purge -q -y `+strings.Join(packages, " ")+` </dev/null`)
	left := l.run(ctx, `
ls -d /run/nomad-gpu /var/lib/nomad-gpu /etc/nomad-gpu /opt/nomad/plugins/* /var/log/nomad-gpu-scheduler /var/lib/nomad-gpu-scheduler 2>/dev/null || true
systemctl list-units --all --plain --no-legend 'nomad-gpu*'
ctr namespaces ls -q | grep nomad-gpu || true
grep nomad-gpu /proc/mounts || true
pgrep -a -f 'nomad-gpu|nomad-device|mps-control' || true`)
	if left != "" {
		l.Errorf("a purge leaves\n%s", left)
	}
}
