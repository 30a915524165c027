// SPDX-License-Identifier: MPL-2.0

package main

import (
	"debug/buildinfo"
	"fmt"
	"go/build"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"unicode"
)

// nomadModule has packages under the Business Source License.
const nomadModule = "github.com/hashicorp/nomad"

// modulesOf are the modules that Go has noted in programs, by path, as they were built.
func (r release) modulesOf(programs []string) (map[string]debug.Module, string, error) {
	modules, toolchain := map[string]debug.Module{}, ""
	for _, program := range programs {
		info, err := buildinfo.ReadFile(filepath.Join(r.bin, program))
		if err != nil {
			return nil, "", err
		}
		toolchain = info.GoVersion
		for _, module := range info.Deps {
			if strings.HasPrefix(module.Path, "github.com/nomad-gpu/") {
				continue // it lies in this repository
			}
			if module.Replace != nil {
				module = module.Replace
			}
			modules[module.Path] = *module
		}
	}
	return modules, toolchain, nil
}

// legal are the names of license files, which binaries must carry along.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|copyright|patents|mit-license)([.-].*)?$`)

// notices are the licenses of all modules in programs, which most of them ask for, and
// the version of Nomad where packages of it are among them.
func (r release) notices(programs []string) (text, nomad string, err error) {
	modules, toolchain, err := r.modulesOf(programs)
	if err != nil {
		return "", "", err
	}
	folders := map[string]string{"Go's standard library, " + toolchain: build.Default.GOROOT}
	if folders["Go's standard library, "+toolchain] == "" {
		out, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			return "", "", err
		}
		folders["Go's standard library, "+toolchain] = strings.TrimSpace(string(out))
	}
	cache, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		return "", "", err
	}
	for _, module := range modules {
		if module.Path == nomadModule {
			nomad = module.Version
		}
		folders[module.Path+" "+module.Version] = filepath.Join(strings.TrimSpace(string(cache)), escaped(module.Path)+"@"+escaped(module.Version))
	}
	names := make([]string, 0, len(folders))
	for name := range folders {
		names = append(names, name)
	}
	slices.Sort(names)
	var all strings.Builder
	for _, name := range names {
		entries, err := os.ReadDir(folders[name])
		if err != nil {
			return "", "", fmt.Errorf("license of %s: %w", name, err)
		}
		found := false
		for _, entry := range entries {
			if entry.IsDir() || !legal.MatchString(entry.Name()) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(folders[name], entry.Name()))
			if err != nil {
				return "", "", err
			}
			fmt.Fprintf(&all, "==== %s: %s ====\n\n%s\n\n", name, entry.Name(), strings.TrimSpace(string(content)))
			found = true
		}
		if !found {
			return "", "", fmt.Errorf("%s: no license is in its sources (%s)", name, folders[name])
		}
	}
	return all.String(), nomad, nil
}

// escaped is a module's path as the module cache spells it: !a for A.
func escaped(path string) string {
	var b strings.Builder
	for _, letter := range path {
		if unicode.IsUpper(letter) {
			b.WriteByte('!')
		}
		b.WriteRune(unicode.ToLower(letter))
	}
	return b.String()
}

// copyright is Debian's file of that name.
func copyright(nomad string) string {
	text := `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: nomad-gpu
Source: https://github.com/nomad-gpu/nomad-gpu

Files: *
Copyright: the authors of nomad-gpu
License: MPL-2.0
Comment:
 The programs contain other modules of Go: third-party-licenses.gz has the
 license of each.
`
	if nomad != "" {
		text += ` .
 Some packages of HashiCorp Nomad ` + nomad + ` in them are under the Business Source
 License 1.1, which is not free software; licenses.md says which. Using these
 programs is allowed, also in production and for pay-per-use inside an
 organization. Who sells a product to third parties, or hosts one for them, that
 has these programs in it and competes with paid versions of HashiCorp's, needs
 another license from HashiCorp. Four years after its release each version of
 Nomad turns into MPL 2.0. Programs without such packages: nomad-gpu-self,
 nomad-gpu-scheduler, gpu-sim.
`
	}
	return text + `
License: MPL-2.0
 This Source Code Form is subject to the terms of the Mozilla Public License,
 v. 2.0. If a copy of the MPL was not distributed with this file, You can obtain
 one at https://mozilla.org/MPL/2.0/.
 .
 On Debian systems the text is in /usr/share/common-licenses/MPL-2.0.
`
}
