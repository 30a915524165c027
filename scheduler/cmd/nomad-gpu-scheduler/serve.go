// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/nomad-gpu/nomad-gpu/internal/command"
	"github.com/nomad-gpu/nomad-gpu/scheduler/config"
)

const serveHelp = `Runs the placement service: a proxy in front of Nomad's HTTP API that decides
where GPU work goes, its REST API and its web page.

What the file leaves out is taken from the environment that the nomad command
knows (NOMAD_ADDR, NOMAD_TOKEN, NOMAD_CACERT, ...). SIGHUP reads the file
again; a file that is not valid changes nothing.`

func runServe(args []string, stdout, stderr io.Writer) int {
	fs := newFlags("serve", serveHelp, stderr)
	path := fs.String("config", "", "the configuration file; none for the defaults")
	listen := fs.String("listen", "", "the address to serve on, in place of the file's")
	dryRun := fs.Bool("dry-run", false, "say what would be evicted, and evict nothing")
	if code, done := command.ParseFlags(fs, args, stdout); done {
		return code
	}
	load := func() (*config.Config, error) {
		c, err := config.Load(*path)
		if err != nil {
			return nil, err
		}
		if *listen != "" {
			c.Listen.Address = *listen
		}
		c.Preemption.DryRun = c.Preemption.DryRun || *dryRun
		return c, nil
	}
	c, err := load()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return exitError
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logger := hclog.New(&hclog.LoggerOptions{Name: "nomad-gpu-scheduler", Output: stderr, Level: hclog.LevelFromString(c.LogLevel)})
	if err := serve(ctx, c, load, logger, stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return exitError
	}
	return exitOK
}

// serve runs the service until ctx ends.
func serve(ctx context.Context, c *config.Config, load func() (*config.Config, error), logger hclog.Logger, stdout io.Writer) error {
	l, err := net.Listen("tcp", c.Listen.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if c.Listen.Advertise == "" {
		c.Listen.Advertise = advertised(c, l.Addr())
	}
	s, err := newService(c, load, logger)
	if err != nil {
		return fmt.Errorf("start service: %w", err)
	}
	fmt.Fprintf(stdout, "nomad-gpu-scheduler serves on %s\n", l.Addr())
	return s.run(ctx, l)
}

// advertised makes a URL of the address that is listened on.
func advertised(c *config.Config, at net.Addr) string {
	scheme := "http"
	if c.Listen.CertFile != "" {
		scheme = "https"
	}
	return scheme + "://" + at.String()
}
