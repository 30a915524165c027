// Command nomad-driver-containerd is a Nomad task driver plugin that runs
// containers with containerd. Nomad starts it; by hand it only says what it is.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins"
	"github.com/hashicorp/nomad/plugins/base"

	"github.com/nomad-gpu/nomad-gpu/driver"
	"github.com/nomad-gpu/nomad-gpu/internal/agentlog"
	"github.com/nomad-gpu/nomad-gpu/internal/version"
)

func main() {
	// Nomad passes on what the agent's configuration has in args.
	byNomad := os.Getenv(base.Handshake.MagicCookieKey) == base.Handshake.MagicCookieValue
	if len(os.Args) > 1 && !byNomad {
		os.Exit(answer(os.Args[1:], os.Stdout, os.Stderr))
	}
	agentlog.Outlive("nomad-driver-containerd")
	plugins.ServeCtx(func(ctx context.Context, logger hclog.Logger) any { return driver.New(ctx, logger) })
}

const help = `Usage: nomad-driver-containerd [help | version]

  A task driver plugin for Nomad. Put the program into the agent's plugin_dir
  and name it in the agent's configuration:

      plugin "nomad-driver-containerd" {
        config { }
      }

  Nomad starts it without arguments. docs/driver.md describes its settings.
`

// answer tells a person at a terminal what the program is; it returns the exit
// code.
func answer(args []string, out, problems io.Writer) int {
	switch args[0] {
	case "-h", "-help", "--help", "help":
		fmt.Fprint(out, help)
	case "-v", "-version", "--version", "version":
		fmt.Fprintln(out, version.Line("nomad-driver-containerd"))
	default:
		fmt.Fprintf(problems, "nomad-driver-containerd has no command %q.\n\n%s", args[0], help)
		return 1
	}
	return 0
}
