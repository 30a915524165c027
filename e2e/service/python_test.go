// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/nomad-gpu/nomad-gpu/internal/testimage"
)

// pythonParts prints where Python lies, and the files of the modules that the
// ranks' programs need. It runs without the machine's own site-packages.
const pythonParts = `
import encodings.idna, json, os, site, socket, sys, sysconfig, time
import collections.abc, importlib.abc, importlib.machinery, importlib.util
modules = [getattr(m, "__file__", None) for m in list(sys.modules.values())]
print(json.dumps({"program": os.path.realpath(sys.executable), "modules": [m for m in modules if m]}))
`

// environment prints a program's environment and then works for ever.
const environment = `import json, os, time; print(json.dumps(dict(os.environ)), flush=True); time.sleep(1e9)`

// pythonImage is an image of this machine's Python under a name, as an archive;
// with a program, that is what it runs.
func pythonImage(ctx context.Context, t *testing.T, name, program string) []byte {
	t.Helper()
	output, err := exec.CommandContext(ctx, "python3", "-I", "-S", "-c", pythonParts).Output()
	if err != nil {
		t.Skip("no python3, which is what the ranks run:", err)
	}
	var parts struct {
		Program string
		Modules []string
	}
	if err := json.Unmarshal(output, &parts); err != nil {
		t.Fatal(err)
	}
	files, err := testimage.HostPrograms(ctx, parts.Program)
	if err != nil {
		t.Fatal(err)
	}
	// Python finds its modules from where its program lies.
	delete(files, "/bin/"+filepath.Base(parts.Program))
	for _, path := range append(parts.Modules, parts.Program) {
		files[path] = testimage.File{Source: path}
	}
	if parts.Program != "/usr/bin/python3" {
		files["/usr/bin/python3"] = testimage.File{Link: parts.Program}
	}
	files["/tmp"] = testimage.File{Mode: 0o777}
	config := ispec.ImageConfig{Env: []string{"PATH=/usr/bin:/bin"}}
	if program != "" {
		config.Entrypoint = []string{"/usr/bin/python3", "-c", program}
	}
	var archive bytes.Buffer
	if err := testimage.Build(&archive, name, files, config); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// environmentOf reads what a task with such an image printed.
func environmentOf(line []byte) (map[string]string, error) {
	found := map[string]string{}
	if err := json.Unmarshal(line, &found); err != nil {
		return nil, fmt.Errorf("decode environment %q: %w", line, err)
	}
	return found, nil
}

// differences says where an environment is not as wanted.
func differences(got, want map[string]string) string {
	var list []string
	for key, value := range want {
		if got[key] != value {
			list = append(list, fmt.Sprintf("%s is %q, want %q", key, got[key], value))
		}
	}
	return strings.Join(list, "; ")
}
