// SPDX-License-Identifier: MPL-2.0

package gpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The bundle's own code runs where no GPU is, on a stand-in for libcuda and for the MPS
// control program, and on a simulated machine: what it measures there says nothing,
// but its programs, their answers and their ends are real.
func TestOnTheStandIn(t *testing.T) {
	control, err := filepath.Abs("../../bin/e2e/620/nvidia-cuda-mps-control")
	if err != nil {
		t.Fatal(err)
	}
	for _, needed := range []string{control, "testdata/libcuda.c"} {
		if _, err := os.Stat(needed); err != nil {
			t.Skipf("this is a test of the repository, after make build: %v", err)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("MPS with a /dev/shm of its own needs root")
	}
	dir, err := os.MkdirTemp("", "standin") // not t.TempDir: clients of any user must reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), "testdata/libcuda.c").CombinedOutput(); err != nil {
		t.Skipf("the stand-in cannot be built: %v: %s", err, out)
	}
	files := map[string]string{
		"nvidia-smi":   "#!/bin/sh\n",
		"topology.hcl": "machine \"bundle\" {}\ngpu {\n  model = \"H100\"\n}\n",
		"plugin.hcl": fmt.Sprintf("state_dir = %[1]q\ndata_dir = %[1]q\nsimulation {\n  topology = %[2]q\n  dir = %[1]q\n}\n",
			filepath.Join(dir, "state"), filepath.Join(dir, "topology.hcl")),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(control, filepath.Join(dir, "nvidia-cuda-mps-control")); err != nil {
		t.Fatal(err)
	}
	for run, wants := range map[string][]string{
		"TestWhatThePagesOfMPSv3LeaveOpen": {"sm-partition list --format=csv,noheader: \"one,", "the program is process ", "protocol 3 (the control program has protocol 3), 132 multiprocessors", "--- PASS: TestWhatThePagesOfMPSv3LeaveOpen"},
		"TestMemoryLimit":                  {"--- PASS: TestMemoryLimit"},
		"TestPercentages":                  {"under MPS with 1 %:", "--- PASS: TestPercentages"},
		"TestTheLeastLimit":                {"with a limit of 256 MiB: holds 256"},
		"TestTheClientBeyondTheLast":       {"a server takes 64 clients and more"},
		"TestTheEndOfAClientInAKernel/(SIGKILL|.*two_processes|SIGSEGV)": {"the culprit: signal: killed", "its neighbor in a kernel: rate ", "a client that comes afterwards says"},
		"TestTheFaultOfAClient/an_illegal":                               {"CUDA_ERROR_ILLEGAL_ADDRESS", "its neighbor in a kernel: rate "},
		"TestTheControlProgram":                                          {"start_server: ", "lspart: "},
		"TestAClientInNamespaces":                                        {"under MPS: true", "--- PASS: TestAClientInNamespaces"},
		"TestTheMemoryOfAContext|TestTheStateOfAShell":                   {"under MPS with a limit of 2048 MiB", "--- PASS: TestTheStateOfAShell"},
		"TestCheckpointAndRestore/(1|40)_":                               {"checkpoint of 1 GiB takes", "restore of 1 GiB takes", "the GPU has room for 16384 MiB", "--- PASS: TestCheckpointAndRestore/1_GiB"},
		"TestAClientOfAnotherUser|TestAClientWithOneSocketOnly":          {"one of user 65534 says \"holds 64 free 960 total 1024\"", "a client gets 1024 MiB of 1024"},
	} {
		t.Run(run, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(self, "-test.v", "-test.run", "^("+strings.ReplaceAll(run, "/", ")$/(")+")")
			cmd.Env = append(os.Environ(), configVariable+"="+filepath.Join(dir, "plugin.hcl"), "LD_LIBRARY_PATH="+dir, "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			for _, want := range wants {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q is not said", want)
				}
			}
			if err != nil || t.Failed() {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// What is skipped is a failure where everything is required.
func TestRequired(t *testing.T) {
	cmd := exec.Command(self, "-test.run", "^TestProbe$")
	cmd.Env = append(os.Environ(), requireVariable+"=1", configVariable+"=", rootVariable+"="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if _, there := os.Stat("/dev/nvidiactl"); there == nil {
		t.Skip("this machine has a GPU")
	}
	if err == nil || !strings.Contains(string(out), "required, and not available: this machine has no NVIDIA driver") {
		t.Errorf("%v\n%s", err, out)
	}
}
