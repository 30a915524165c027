// SPDX-License-Identifier: MPL-2.0

// Command demo runs the jobs of examples/ on a real Nomad with a real containerd
// and shows which part of each GPU a task got, as the plugins recorded it and as
// the containers saw it. The placement service runs beside it, for the last job.
//
//	demo          start, run, show, clean up
//	demo -keep    start, run, show, and leave it running
//	demo -stop    end what -keep left
//	demo -image FILE  write the examples' image, for a client of your own
//
// The GPUs are this machine's if NVML answers, otherwise simulated.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// keptDir is where a cluster lives that outlives the command.
const keptDir = "/var/tmp/nomad-gpu-dev"

// nomadPort is where people expect Nomad, servicePort where they expect the placement
// service.
const nomadPort, servicePort = 4646, 4656

// patience is how long the whole demo may take.
const patience = 8 * time.Minute

func main() {
	keep := flag.Bool("keep", false, "leave everything running")
	stop := flag.Bool("stop", false, "end what -keep left running")
	image := flag.String("image", "", "write the image of the examples to this file, and do nothing else")
	simulate := flag.Bool("simulate", false, "use simulated GPUs although there are real ones")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	var err error
	switch {
	case *image != "":
		err = writeImage(*image)
	case *stop:
		progress("stopping what \"make dev\" started")
		err = cluster.End(keptDir)
	default:
		err = run(ctx, *keep, *simulate)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "nomad-gpu:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, keep, simulate bool) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	simulate = simulate || realGPUs() == 0
	options := cluster.Options{
		Bin:      filepath.Join(root, "bin"),
		Nodes:    []cluster.NodeOptions{machine(root, simulate)},
		Progress: progress,
	}
	if keep {
		if r, err := cluster.ReadRecord(keptDir); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("it is already running, with its UI at %s/ui; stop it with: make dev-stop", r.URL)
		}
		options.Dir, options.Detached, options.HTTPPort = keptDir, true, freeOr(nomadPort)
	}
	c, err := cluster.Start(ctx, options)
	if err != nil {
		return err
	}
	page, err := serve(ctx, c, keep)
	if err == nil {
		err = show(ctx, c, page, root, simulate)
	}
	if !keep {
		progress("cleaning up; make dev leaves it running, with the page, Nomad's UI and the nomad command to look further")
		return errors.Join(err, c.Close())
	}
	fmt.Printf(further, page, c.URL, c.URL, page, root) // what went wrong can be looked at, too
	return err
}

// serve starts the placement service, and returns its address.
func serve(ctx context.Context, c *cluster.Cluster, keep bool) (string, error) {
	port := 0
	if keep {
		port = freeOr(servicePort)
	}
	progress("starting the placement service")
	address, err := c.Servers[0].StartService(ctx, port, queueOfDemo)
	if err == nil {
		progress("its page is at %s/gpu/", address)
	}
	return address, err
}

// queueOfDemo makes the page show a team's quota.
const queueOfDemo = `queue "team" {
  gpus       = 8
  namespaces = ["default"]
}
`

// writeImage makes the archive that "ctr images import" reads.
func writeImage(path string) error {
	archive, err := cluster.ImageArchive("bin")
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o644)
}

const further = `
It is running. Look further:
  open %s/gpu/    the page: GPUs, slices, who holds them, what waits
  open %s/ui
  export NOMAD_ADDR=%s NOMAD_GPU_ADDR=%s PATH=$PATH:%[5]s/bin:%[5]s/bin/e2e
  nomad-gpu-scheduler status
  nomad job status slice
  nomad alloc logs -job slice
  nomad node status -stats $(nomad node status -quiet -filter 'Name == "node-0"')
Stop it with: make dev-stop
`

// machine is the demo's node: real GPUs, all sliced, or the simulated machine
// with every way of offering a GPU.
func machine(root string, simulate bool) cluster.NodeOptions {
	if !simulate {
		progress("using this machine's GPUs")
		return cluster.NodeOptions{GPUs: `mode = "slice"`}
	}
	progress("simulating eight H100, four sliced, two with MIG, two whole")
	return cluster.MachineOfExamples(root)
}

func realGPUs() int {
	if nvml.Init() != nvml.SUCCESS {
		return 0
	}
	defer nvml.Shutdown()
	count, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return 0
	}
	return count
}

// freeOr returns the port, or 0 when it is taken.
func freeOr(port int) int {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return 0
	}
	listener.Close()
	return port
}

func progress(format string, args ...any) { fmt.Printf("==> "+format+"\n", args...) }
