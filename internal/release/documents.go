// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2/files"
)

// about is one line on each program, for its manual page.
var about = map[string]string{
	"nomad-device-gpu":        "device plugin of Nomad that shares GPUs",
	"nomad-driver-containerd": "task driver of Nomad for containerd",
	"nomad-gpu-doctor":        "check a Nomad client with GPUs",
	"nomad-gpu-self":          "ask about a task's own share of a GPU",
	"nomad-gpu-scheduler":     "GPU placement service for Nomad",
	"gpu-sim":                 "simulate the placement of GPU work",
}

// documents are the files of a package that its users read or their shells use: manual
// pages, completions, the license, notices and changes.
func (r release) documents(name string, programs ...string) (files.Contents, error) {
	doc := "/usr/share/doc/" + name + "/"
	contents := files.Contents{
		r.fileOf("docs/design/licenses.md", doc+"licenses.md"),
		r.fileOf("CHANGELOG.md", doc+"NEWS.md"),
		r.fileOf("LICENSE", doc+"LICENSE"),
	}
	notices, business, err := r.notices(programs)
	if err != nil {
		return nil, err
	}
	generated := map[string]string{doc + "copyright": copyright(business), doc + "third-party-licenses.gz": notices}
	for _, program := range programs {
		page, err := r.manual(program)
		if err != nil {
			return nil, err
		}
		generated["/usr/share/man/man1/"+program+".1.gz"] = page
		generated["/usr/share/bash-completion/completions/"+program] = fmt.Sprintf("complete -C /usr/bin/%s %[1]s\n", program)
		generated["/usr/share/zsh/vendor-completions/_"+program] = fmt.Sprintf("#compdef %s\nautoload -U +X bashcompinit && bashcompinit\ncomplete -C /usr/bin/%[1]s %[1]s\n_bash_complete -C /usr/bin/%[1]s\n", program)
		generated["/usr/share/fish/vendor_completions.d/"+program+".fish"] = fmt.Sprintf("complete -c %s -f -a '(env COMP_LINE=(commandline -cp) /usr/bin/%[1]s)'\n", program)
	}
	for destination, text := range generated {
		source, err := r.generate(destination, text)
		if err != nil {
			return nil, err
		}
		content := files.Content{Source: source, Destination: destination, FileInfo: r.info(0o644)}
		if function, ok := strings.CutPrefix(destination, "/usr/share/zsh/vendor-completions"); ok {
			content.Packager = "deb"
			contents = append(contents, &files.Content{Source: source, Destination: "/usr/share/zsh/site-functions" + function, FileInfo: r.info(0o644), Packager: "rpm"})
		}
		contents = append(contents, &content)
	}
	return contents, nil
}

// generate writes a file of a package, compressed where its name says so.
func (r release) generate(destination, text string) (string, error) {
	out := []byte(text)
	if strings.HasSuffix(destination, ".gz") {
		var zip bytes.Buffer
		w, err := gzip.NewWriterLevel(&zip, gzip.BestCompression) // without a date
		if err != nil {
			return "", err
		}
		if _, err := w.Write(out); err != nil {
			return "", err
		}
		if err := w.Close(); err != nil {
			return "", err
		}
		out = zip.Bytes()
	}
	source := filepath.Join(r.work, strings.ReplaceAll(destination, "/", "+"))
	return source, os.WriteFile(source, out, 0o644)
}

// subcommand is a line of a program's help: "  top        watch GPUs".
var subcommand = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*) +\S.*$`)

// manual is the page of a program, made of what the program says for each of its commands.
func (r release) manual(program string) (string, error) {
	says := func(args ...string) (string, error) {
		out, err := exec.Command(filepath.Join(r.host, program), args...).Output()
		if err != nil {
			return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
		}
		return string(out), nil
	}
	help, err := says("help")
	if err != nil {
		return "", err
	}
	var page strings.Builder
	fmt.Fprintf(&page, ".TH %s 1 %q %q\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n.I command\n[options]\n.SH COMMANDS\n",
		strings.ToUpper(program), r.date.Format("2006-01-02"), "nomad-gpu "+r.version, roff(program), roff(about[program]), roff(program))
	commands := subcommand.FindAllStringSubmatch(help, -1)
	if len(commands) == 0 {
		return "", fmt.Errorf("%s help: no command is in %q", program, help)
	}
	for _, command := range commands {
		text, err := says("help", command[1])
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&page, ".SS %s\n.nf\n%s\n.fi\n", roff(command[1]), roff(strings.TrimSpace(text)))
	}
	page.WriteString(".SH EXIT STATUS\n0: done. 1: it failed. 2: the command line is not understood.\n.SH SEE ALSO\nhttps://github.com/nomad-gpu/nomad-gpu\n")
	return page.String(), nil
}

// roff is text that troff prints as it is.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\t", "    ").Replace(text)
	lines := strings.Split(text, "\n")
	for n, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[n] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// change is a point of CHANGELOG.md, over as many lines as it has.
var change = regexp.MustCompile(`(?m)^- (.+)$`)

// link is a link of Markdown.
var linkOf = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)

// changelog writes the newest section of CHANGELOG.md as nfpm reads changes.
func (r release) changelog() (string, error) {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	sections := strings.Split(string(text), "\n## ")
	if len(sections) < 2 {
		return "", fmt.Errorf("CHANGELOG.md has no section")
	}
	type note struct {
		Note string `json:"note"`
	}
	var notes []note
	for _, point := range change.FindAllStringSubmatch(sections[1], -1) {
		notes = append(notes, note{strings.ReplaceAll(linkOf.ReplaceAllString(point[1], "$1"), "`", "")})
	}
	if len(notes) == 0 {
		return "", fmt.Errorf("CHANGELOG.md: the newest section has no change")
	}
	entries, err := json.Marshal([]any{map[string]any{ // which is YAML too
		"semver": r.version, "date": r.date.Format(time.RFC3339), "packager": maintainer,
		"deb": map[string]any{"urgency": "medium", "distributions": []string{"stable"}}, "changes": notes,
	}})
	if err != nil {
		return "", err
	}
	return r.generate("changelog.yaml", string(entries))
}
