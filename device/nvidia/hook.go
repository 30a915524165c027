// SPDX-License-Identifier: MPL-2.0

package nvidia

import (
	"context"
	"fmt"

	"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook/commands"
	"github.com/sirupsen/logrus"
	"github.com/urfave/cli/v3"
)

// Hook is NVIDIA's nvidia-cdi-hook: what the container runtime runs while it makes
// a container, with the arguments of a spec's hook. A hook that it does not know
// is a warning, as with NVIDIA's program.
func Hook(args []string) error {
	log := logrus.New()
	log.SetLevel(logrus.WarnLevel)
	program := commands.ConfigureCDIHookCommand(log, &cli.Command{Name: HookCommand})
	if err := program.Run(context.Background(), args); err != nil {
		return fmt.Errorf("run CDI hook: %w", err)
	}
	return nil
}
