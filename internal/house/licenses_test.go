// SPDX-License-Identifier: MPL-2.0

package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const nomadModule = "github.com/hashicorp/nomad/"

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir  string
	GoFiles, Imports []string
}

// dependencies are all packages that a program is made of.
func dependencies(t *testing.T, program string) (all []listed) {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,Imports", module+program)
	list.Dir = root
	if strings.HasPrefix(program, "lab/") {
		list.Dir = filepath.Join(root, "lab")
	}
	out, err := list.Output()
	if err != nil {
		t.Fatalf("list what %s is made of: %v", program, err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// businessSource reports whether a file of a package is under the BUSL.
func businessSource(t *testing.T, p listed) bool {
	t.Helper()
	if !strings.HasPrefix(p.ImportPath, nomadModule) {
		return false
	}
	return slices.ContainsFunc(p.GoFiles, func(file string) bool {
		text, err := os.ReadFile(filepath.Join(p.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(text, []byte("SPDX-License-Identifier: BUSL"))
	})
}

// Packagers are told which packages under the Business Source License there are in which
// program, and which of them our own sources import.
func TestBusinessSourcePackagesAreListed(t *testing.T) {
	text := read(t, "docs/design/licenses.md")
	ours := map[string][]string{} // of their packages, by which of ours they are imported
	for program, free := range map[string]bool{
		"scheduler/cmd/nomad-gpu-scheduler": true, "lab/cmd/gpu-sim": true, "plugin/nomad-gpu-self": true,
		"plugin/nomad-device-gpu": false, "plugin/nomad-driver-containerd": false, "plugin/nomad-gpu-doctor": false,
	} {
		bound := map[string]bool{}
		all := dependencies(t, program)
		for _, p := range all {
			if businessSource(t, p) {
				bound[p.ImportPath] = true
			}
		}
		if free != (len(bound) == 0) || !free && !strings.Contains(text, strconv.Itoa(len(bound))+" packages under the BUSL") {
			t.Errorf("%s has %d packages under the BUSL, docs/design/licenses.md says otherwise", program, len(bound))
		}
		for _, p := range all {
			by, own := strings.CutPrefix(p.ImportPath, module)
			for _, name := range p.Imports {
				if own && bound[name] && !slices.Contains(ours[name], by) {
					ours[name] = append(ours[name], by)
				}
			}
		}
	}
	written := map[string]string{} // the rows of the second table by package
	_, table, _ := strings.Cut(text, "What our own sources import")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		for _, name := range strings.Split(cells[1], ",") {
			written[nomadModule+strings.Trim(name, " `")] = cells[2]
		}
	}
	for name, by := range ours {
		for _, one := range by {
			if !strings.Contains(written[name], "`"+one+"`") {
				t.Errorf("docs/design/licenses.md does not say that %s imports %s", one, name)
			}
		}
	}
	for name := range written {
		if ours[name] == nil {
			t.Errorf("docs/design/licenses.md lists %s, which none of our sources imports", name)
		}
	}
}
