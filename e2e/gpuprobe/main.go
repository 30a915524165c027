// SPDX-License-Identifier: MPL-2.0

// Command gpuprobe is what the examples run instead of a GPU program: it prints
// what such a program would find, as one line of JSON, and then works until it
// is told to stop.
//
//	gpuprobe                     report, then wait for SIGTERM; exit 0
//	gpuprobe -once               report and exit 0
//	gpuprobe -exit 7             as without, but SIGUSR1 ends it with code 7
//	gpuprobe -- COMMAND          run it, as the init program of a container does
//
// It needs nothing but the kernel, so it can stand alone in an image.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/e2e/probe"
)

func main() {
	once := flag.Bool("once", false, "report and end")
	code := flag.Int("exit", 0, "exit code after SIGUSR1")
	flag.Parse()
	if flag.NArg() > 0 {
		cmd := exec.Command(flag.Arg(0), flag.Args()[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, "run", flag.Arg(0)+":", err)
			os.Exit(1)
		}
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1)
	if err := json.NewEncoder(os.Stdout).Encode(find()); err != nil {
		fmt.Fprintln(os.Stderr, "write report:", err)
		os.Exit(1)
	}
	if *once {
		return
	}
	if <-stop == unix.SIGUSR1 {
		os.Exit(*code)
	}
}

func find() probe.Report {
	env := gpuEnv(os.Environ())
	return probe.Report{
		Env:         env,
		Nodes:       deviceNodes("/dev"),
		Forged:      forge(os.TempDir(), probe.NVIDIAMajor, 0, 16),
		ForgedDRM:   forge(os.TempDir(), probe.DRMMajor, probe.FirstRender, 32),
		ForgedNPU:   forge(os.TempDir(), probe.NPUMajor, 0, 16),
		ForgedVNPU:  forge(os.TempDir(), probe.VNPUMajor, 100, 48),
		MemoryLimit: env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"],
	}
}

// gpuEnv keeps the variables that steer GPU programs.
func gpuEnv(environ []string) map[string]string {
	kept := map[string]string{}
	for _, entry := range environ {
		key, value, _ := strings.Cut(entry, "=")
		for _, prefix := range []string{"NVIDIA_", "CUDA_", "NOMAD_GPU_", "LD_", "ROCR_", "HIP_", "ZE_", "ASCEND_"} {
			if strings.HasPrefix(key, prefix) {
				kept[key] = value
			}
		}
	}
	return kept
}

// usual are the device nodes that every container has.
var usual = map[string]bool{
	"null": true, "zero": true, "full": true, "random": true, "urandom": true,
	"tty": true, "ptmx": true, "console": true, "fuse": true,
}

func deviceNodes(dir string) []probe.Node {
	nodes := []probe.Node{}
	// What cannot be listed cannot be reported; the walk goes on with the rest.
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeCharDevice == 0 || usual[entry.Name()] || filepath.Base(filepath.Dir(path)) == "pts" {
			return nil
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			nodes = append(nodes, probe.Node{Path: path, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev), Open: open(path)})
		}
		return nil
	})
	return nodes
}

// forge makes nodes for GPUs of its own accord and opens them.
func forge(dir string, major, first, count uint32) map[string]string {
	answers := map[string]string{}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return map[string]string{"mkdir": err.Error()}
	}
	for minor := first; minor < first+count; minor++ {
		path := filepath.Join(dir, fmt.Sprintf(".gpuprobe-%d-%d-%d", os.Getpid(), major, minor))
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil {
			answers[fmt.Sprint(minor)] = "mknod " + errno(err)
			continue
		}
		answers[fmt.Sprint(minor)] = open(path)
		_ = os.Remove(path)
	}
	return answers
}

// open answers "ok" or the name of the error. A node whose GPU does not exist,
// as in simulation, answers ENXIO when it may be opened.
func open(path string) string {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return errno(err)
	}
	_ = unix.Close(fd)
	return "ok"
}

func errno(err error) string {
	var number unix.Errno
	if errors.As(err, &number) {
		return unix.ErrnoName(number)
	}
	return err.Error()
}
