// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// A setuid program that a task leaves for others is one on the host, and the node says
// whether its mount makes it harmless.
func TestSetuidFilesInTheDataDir(t *testing.T) {
	withContainerd(t, func(t *testing.T, e *env) {
		safe := func() string {
			f, _ := e.driver.fingerprint(context.Background())
			attribute := f.Attributes["driver.containerd.data_dir_safe"]
			if attribute == nil {
				return ""
			}
			return attribute.GoString()
		}
		must.Eq(t, "", safe())
		cfg := e.quietTask(defaultTaskConfig("sh", "-c", "echo x > /alloc/data/su; chmod 4777 /alloc/data/su"))
		e.runPrepared(cfg)
		info, err := os.Stat(filepath.Join(cfg.AllocDir, "alloc", "data", "su"))
		must.NoError(t, err)
		must.Eq(t, fs.ModeSetuid, info.Mode()&fs.ModeSetuid)
		must.Eq(t, "no", safe())

		e.restart()
		cfg = e.quietTask(defaultTaskConfig("true"))
		must.NoError(t, unix.Mount(cfg.AllocDir, cfg.AllocDir, "", unix.MS_BIND|unix.MS_REC, ""))
		defer func() { must.NoError(t, unix.Unmount(cfg.AllocDir, unix.MNT_DETACH)) }()
		must.NoError(t, unix.Mount("", cfg.AllocDir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""))
		e.runPrepared(cfg)
		must.Eq(t, "yes", safe())
	})
}
