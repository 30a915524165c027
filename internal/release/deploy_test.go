// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// jobOf is a job as Nomad's own command reads it.
func jobOf(t *testing.T, path string) map[string]any {
	t.Helper()
	nomad := "../../bin/e2e/nomad"
	if _, err := os.Stat(nomad); err != nil {
		t.Skip("Nomad is not there: e2e/prepare finds or builds it")
	}
	var parsed struct{ Job map[string]any }
	if err := json.Unmarshal([]byte(manager{t, ""}.does(nomad, "job", "run", "-output", path)), &parsed); err != nil {
		t.Fatal(err)
	}
	return parsed.Job
}

// The pack, rendered by nomad-pack itself, is the example's job with other knobs, and
// configurations that the programs take.
func TestPackIsTheExample(t *testing.T) {
	pack, err := exec.LookPath(cmp.Or(os.Getenv("NOMAD_PACK"), "nomad-pack"))
	if err != nil {
		t.Skip("nomad-pack is not there; NOMAD_PACK says where it is")
	}
	out := t.TempDir()
	m := manager{t, out}
	m.does(pack, "render", "../../examples/deploy/nomad-pack/packs/nomad_gpu", "--to-dir", out, "--var", "monitoring=true", "--var", `clients=["10.0.0.1"]`)
	rendered := jobOf(t, filepath.Join(out, "nomad_gpu/scheduler.nomad"))
	example := filepath.Join(out, "example.nomad.hcl")
	text := regexp.MustCompile(`(?s)\n +queue "default" \{.*?\}`).ReplaceAllString(read(t, "../..", "examples/service/nomad-gpu-scheduler.nomad.hcl"), "")
	put(t, example, regexp.MustCompile(`(?m)^ +#.*\n`).ReplaceAllString(text, ""), 0o644)
	if want := jobOf(t, example); !reflect.DeepEqual(rendered["TaskGroups"], want["TaskGroups"]) {
		t.Errorf("the pack's groups are\n%v\nand the example's\n%v", rendered["TaskGroups"], want["TaskGroups"])
	}
	monitoring, err := json.Marshal(jobOf(t, filepath.Join(out, "nomad_gpu/monitoring.nomad")))
	if err != nil || !strings.Contains(string(monitoring), `targets: [\"10.0.0.1:9836\",]`) {
		t.Errorf("%v: the clients are not in\n%s", err, monitoring)
	}
	m.does("../../bin/nomad-device-gpu", "validate", filepath.Join(out, "nomad_gpu/client.hcl"))
}

// The role installs a package and configures a client, twice: the second time it changes
// nothing. The machine is this one below layers that end with the process.
func TestRoleSetsUpAClient(t *testing.T) {
	if os.Getenv("NOMAD_GPU_FULL") == "" {
		t.Skip("it takes two minutes: NOMAD_GPU_FULL=1 runs it")
	}
	if _, err := exec.LookPath("ansible-playbook"); err != nil {
		t.Skip("ansible is not there")
	}
	if os.Getuid() != 0 {
		t.Skip("only root can lay file systems over each other")
	}
	t.Setenv("ANSIBLE_LOCAL_TEMP", t.TempDir())
	t.Setenv("ANSIBLE_REMOTE_TEMP", t.TempDir())
	m := manager{t, ""}
	m.does("ansible-playbook", "-i", "localhost,", "--syntax-check", "../../examples/deploy/ansible/site.yml")
	if _, err := os.Stat("../../bin/nomad-device-gpu"); err != nil {
		t.Skip("the programs are not built: make programs")
	}
	if _, err := exec.LookPath("containerd"); err != nil {
		t.Skip("containerd is not there")
	}
	layers := t.TempDir()
	var err error
	if built, err = standIns(); err != nil {
		t.Fatal(err)
	}
	r := releaseOf(programsOf(t, filepath.Join(built, "nothing")), t.TempDir())
	r.arch, r.version, r.host = runtime.GOARCH, "1.2.3", programsOf(t, filepath.Join(built, "helpful"))
	if err := os.Remove(filepath.Join(r.bin, "nomad-device-gpu")); err != nil {
		t.Fatal(err)
	}
	program, err := filepath.Abs("../../bin/nomad-device-gpu") // which checks the configuration
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(r.bin, "nomad-device-gpu")); err != nil {
		t.Fatal(err)
	}
	if err := r.make(); err != nil {
		t.Fatal(err)
	}
	script := `set -e
mount -t tmpfs none "$1"
for dir in etc opt usr var; do
  mkdir -p "$1/$dir/upper" "$1/$dir/work"
  mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$1/$dir/upper,workdir=$1/$dir/work" "/$dir"
done
mkdir -p /etc/nomad.d
for time in first second; do
  ansible-playbook -i localhost, -c local ../../examples/deploy/ansible/site.yml -e nomad_gpu_restart=false -e nomad_gpu_package="$2"
done
cat /etc/nomad.d/nomad-gpu.hcl; dpkg-query -W nomad-gpu-plugins`
	said := m.does("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", layers, r.path("nomad-gpu-plugins_1.2.3_"+runtime.GOARCH+".deb"))
	recaps := regexp.MustCompile(`changed=(\d+) .*failed=(\d+)`).FindAllStringSubmatch(said, -1)
	if len(recaps) != 2 || recaps[0][1] == "0" || recaps[1][1] != "0" || !strings.Contains(said, `mode = "slice"`) || !strings.Contains(said, "nomad-gpu-plugins\t1.2.3") {
		t.Errorf("%v\n%s", recaps, said)
	}
	if _, err := os.Stat("/usr/share/doc/nomad-gpu-plugins"); err == nil {
		t.Error("the machine below has the package")
	}
}
