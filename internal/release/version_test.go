// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// history makes a repository with 200 commits and some tags, and returns its commits, the
// oldest first.
func history(t *testing.T) (repository string, commits []string) {
	t.Helper()
	repository = t.TempDir()
	tags := map[int]string{80: "v0.1.0", 90: "v0.1.1", 150: "v0.2.0-rc.1", 160: "v0.2.0-rc.2", 170: "v0.2.0", 199: "v1.0.0"}
	var stream strings.Builder
	for n := range 200 {
		fmt.Fprintf(&stream, "commit refs/heads/main\nmark :%d\ncommitter a <a@example> %d +0000\ndata 1\n.\n", n+1, 1767225600+n)
		if tag := tags[n]; tag != "" {
			fmt.Fprintf(&stream, "reset refs/tags/%s\nfrom :%d\n\n", tag, n+1)
		}
	}
	git(t, repository, "", "init", "-q")
	git(t, repository, stream.String(), "fast-import", "--quiet")
	return repository, successive(t, repository, "main", 200)
}

// successive are the last commits that followed each other, the oldest first.
func successive(t *testing.T, repository, head string, count int) []string {
	t.Helper()
	return strings.Fields(git(t, repository, "", "rev-list", "--first-parent", "--reverse", fmt.Sprintf("-%d", count), head))
}

func git(t *testing.T, repository, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", repository}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// versionsOf are what the build calls commits.
func versionsOf(t *testing.T, repository string, commits []string) []string {
	t.Helper()
	script, err := filepath.Abs("version")
	if err != nil {
		t.Fatal(err)
	}
	loop := exec.Command("sh", "-c", `for commit; do "$0" "$commit" || exit 1; done`)
	loop.Args = append(append(loop.Args, script), commits...)
	loop.Dir = repository
	out, err := loop.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.Fields(string(out))
}

// An upgrade to a later commit is an upgrade for Debian and for rpm.
func TestVersionsSortAsCommitsDo(t *testing.T) {
	repository, commits := history(t)
	t.Run("tags", func(t *testing.T) { t.Parallel(); sorted(t, versionsOf(t, repository, commits)) })
	t.Run("this repository", func(t *testing.T) {
		t.Parallel()
		top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
		if err != nil {
			t.Skip("the sources are not in Git")
		}
		here := strings.TrimSpace(string(top))
		if strings.TrimSpace(git(t, here, "", "rev-parse", "--is-shallow-repository")) == "true" {
			t.Skip("this clone is shallow: its commits cannot be counted")
		}
		sorted(t, versionsOf(t, here, successive(t, here, "HEAD", 40)))
	})
}

func sorted(t *testing.T, versions []string) {
	t.Helper()
	if len(versions) < 2 {
		t.Fatalf("there are only the versions %v", versions)
	}
	for n := range versions {
		versions[n] = strings.Replace(versions[n], "-rc.", "~rc.", 1) // as packages write what comes before a release
	}
	t.Logf("%d versions from %s to %s", len(versions), versions[0], versions[len(versions)-1])
	for name, sorts := range map[string]func(t *testing.T, versions []string) []bool{"dpkg": dpkgSorts, "rpm": rpmSorts} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(name); err != nil {
				t.Skip(name + " is not there")
			}
			wrong := 0
			for n, ok := range sorts(t, versions) {
				if !ok {
					if wrong++; wrong <= 3 {
						t.Errorf("%s is not newer than %s", versions[n+1], versions[n])
					}
				}
			}
			if wrong > 0 {
				t.Errorf("%d of %d upgrades go back", wrong, len(versions)-1)
			}
		})
	}
}

func dpkgSorts(t *testing.T, versions []string) (newer []bool) {
	for n := range versions[1:] {
		newer = append(newer, exec.Command("dpkg", "--compare-versions", versions[n], "lt", versions[n+1]).Run() == nil)
	}
	return newer
}

func rpmSorts(t *testing.T, versions []string) (newer []bool) {
	var program strings.Builder
	for n := range versions[1:] {
		fmt.Fprintf(&program, "print(rpm.vercmp(%q, %q), '') ", versions[n], versions[n+1])
	}
	out, err := exec.Command("rpm", "--eval", "%{lua: "+program.String()+"}").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, order := range strings.Fields(string(out)) {
		newer = append(newer, order == "-1")
	}
	if len(newer) != len(versions)-1 {
		t.Fatalf("rpm says %q", out)
	}
	return newer
}
