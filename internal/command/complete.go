// SPDX-License-Identifier: MPL-2.0

package command

import (
	"bytes"
	"context"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/posener/complete"
)

// Predictor completes an argument, or the value of an option.
type Predictor = complete.Predictor

// OneOf completes some words.
func OneOf(words ...string) Predictor { return complete.PredictSet(words...) }

// Files completes the names of files and folders.
var Files = complete.PredictFiles("*")

// namesTimeout is how long a shell waits for names.
const namesTimeout = time.Second

// Names completes with what list finds out, of this machine or of a server, until the
// context ends; given returns what the command line so far says for an option. Without
// an answer in time there are no completions and no error: the user types on. Names that
// a shell would not take as one plain word are left out: otherwise the author of a name
// could choose what the user's shell runs.
func Names(list func(ctx context.Context, given func(option string) string) []string) Predictor {
	return complete.PredictFunc(func(a complete.Args) []string {
		ctx, cancel := context.WithTimeout(context.Background(), namesTimeout)
		defer cancel()
		names := make(chan []string, 1)
		go func() { names <- list(ctx, func(option string) string { return givenFor(a.Completed, option) }) }()
		select {
		case <-ctx.Done(): // what list waits for may know no context
			return nil
		case all := <-names:
			all = slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !plain.MatchString(name) })
			slices.Sort(all)
			return slices.Compact(all)
		}
	})
}

// plain is a word that every shell takes as it is.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,][A-Za-z0-9_./:@%+,=-]*$`)

// givenFor is the value that a command line gives an option last.
func givenFor(args []string, option string) (value string) {
	for n, arg := range args {
		name, inside, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		switch {
		case name != option || !strings.HasPrefix(arg, "-"):
		case joined:
			value = inside
		case n+1 < len(args):
			value = args[n+1]
		}
	}
	return value
}

// subcommand is a Command as hashicorp/cli wants it.
type subcommand struct {
	Command
	stdout, stderr io.Writer
}

func (s *subcommand) Synopsis() string { return s.Command.Synopsis }

func (s *subcommand) Run(args []string) int { return s.Command.Run(args, s.stdout, s.stderr) }

func (s *subcommand) Help() string {
	var help bytes.Buffer
	s.Command.Run([]string{"-help"}, &help, io.Discard)
	return strings.TrimRight(help.String(), "\n")
}

func (s *subcommand) AutocompleteArgs() complete.Predictor {
	if s.Arguments == nil {
		return complete.PredictNothing
	}
	return s.Arguments
}

// option is a line of a subcommand's help: "  -var-file file".
var option = regexp.MustCompile(`(?m)^  (-[a-z0-9-]+)(?: (\S+))?`)

// AutocompleteFlags reads the options from the help, so that neither can fall
// behind the other.
func (s *subcommand) AutocompleteFlags() complete.Flags {
	flags := complete.Flags{}
	for _, line := range option.FindAllStringSubmatch(s.Help(), -1) {
		value, known := s.Values[strings.TrimPrefix(line[1], "-")]
		switch {
		case known:
			flags[line[1]] = value
		case line[2] == "":
			flags[line[1]] = complete.PredictNothing
		case line[2] == "file", line[2] == "folder":
			flags[line[1]] = Files
		default:
			flags[line[1]] = complete.PredictAnything
		}
	}
	return flags
}

// completes says whether a shell asks for completions, or is to be taught to.
func completes(args []string) bool {
	return os.Getenv("COMP_LINE") != "" || slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(strings.TrimLeft(a, "-"), "autocomplete-")
	})
}
