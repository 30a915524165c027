// SPDX-License-Identifier: MPL-2.0

package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestReload changes the configuration of a running service: what is valid takes
// effect, what is not changes nothing and is named, and what needs a restart
// stays. The audit log goes on in a new file.
func TestReload(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	audit := filepath.Join(t.TempDir(), "audit.json")
	config := func(quota, rest string) string {
		return fmt.Sprintf("%s\nlisten {\n audit_file = %q\n}\nqueue \"default\" {\n gpus = %s\n borrow = false\n namespaces = [\"default\"]\n}\n", rest, audit, quota)
	}
	r := serve(ctx, t, c, config("1", ""))
	hup := func(text, says string) {
		t.Helper()
		before := strings.Count(r.said(t), says)
		write(t, r.config, text)
		if err := r.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		until(ctx, t, "read the file", 20*time.Second, func() (bool, string) {
			return strings.Count(r.said(t), says) > before, r.said(t)
		})
	}
	two := job{id: "two", meta: map[string]string{"gpu": "2"}}
	admitted(ctx, t, r, job{id: "one", meta: map[string]string{"gpu": "1G"}})
	if err := submit(ctx, r.API, two); err == nil || !strings.Contains(err.Error(), "at most 1") {
		t.Errorf("two GPUs of a quota of one: %v", err)
	}

	if err := os.Rename(audit, audit+".1"); err != nil {
		t.Fatal(err)
	}
	hup(config("2", "lok_level = \"DEBUG\""), `lok_level`)
	if err := submit(ctx, r.API, two); err == nil {
		t.Error("a file that is not valid took effect")
	}
	hup(config("2", "log_level = \"LOUD\""), `log_level "LOUD"`)
	hup(config("2", "memory_gb = { T4 = 14 }\nlog_level = \"DEBUG\""), `keys=memory_gb`)
	admitted(ctx, t, r, two)
	for file, want := range map[string][]string{audit + ".1": {`"job_id":"one"`, `"outcome":"refused"`}, audit: {`"job_id":"two"`, `"outcome":"held"`}} {
		text, err := os.ReadFile(file)
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("%s (%v) has no %s:\n%s", file, err, w, text)
			}
		}
		if info, err := os.Stat(file); err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %s, others may read it", file, info.Mode())
		}
	}
}

// TestLimits sends what is too large, too much and too slow.
func TestLimits(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	r := serve(ctx, t, c, "listen {\n max_body_bytes = 4096\n requests_per_second = 1\n burst = 5\n request_timeout = \"5s\"\n}\n")
	large := job{id: "large", meta: map[string]string{"gpu": "1G", "note": strings.Repeat("x", 5000)}}
	until(ctx, t, "refuse a large job", 30*time.Second, func() (bool, string) {
		err := submit(ctx, r.API, large)
		return err != nil && strings.Contains(err.Error(), "413") && strings.Contains(err.Error(), "4096 bytes"), fmt.Sprint(err)
	})
	until(ctx, t, "refuse too many jobs", 30*time.Second, func() (bool, string) {
		err := submit(ctx, r.API, large)
		return err != nil && strings.Contains(err.Error(), "429"), fmt.Sprint(err)
	})
	if _, _, err := r.API.Jobs().List(nil); err != nil {
		t.Errorf("reads are limited too: %v", err)
	}
}
