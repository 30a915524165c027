// SPDX-License-Identifier: MPL-2.0

package record

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// A Nomad Variable holds 64 KiB, and a job of many groups or allocs needs more.
// Such a record lies, compressed, in several Variables below its own:
//
//	nomad-gpu/decisions/<hash>                {"job", "parts": "3", "series": "ABC…"}
//	nomad-gpu/decisions/<hash>/ABC…/0 to 2    {"part"}
//
// Every writing makes a series of its own and then names it in the head, which is
// compare-and-set: whoever reads sees the one or the other, and a writer that dies
// in between leaves parts that no head names, which the next leader deletes.

// partSize is the size of a part in one Variable, with room for the fields beside it.
const partSize = 56 << 10

// maxParts bounds what a head may name.
const maxParts = 1024

// longestText is how many bytes are kept of a sentence: two names that the service admits, and the words
// said of them.
const longestText = 3 * admit.LongestName

// CutKey is a namespace/job for people: Nomad has no bound for the names of jobs, and with a long one
// nothing could be written.
func CutKey(key string) string {
	namespace, job, found := strings.Cut(key, "/")
	if !found {
		return admit.CutName(key)
	}
	return namespace + "/" + admit.CutName(job)
}

// CutEvent is an event as it is shown and stored: with long names and texts cut, but not the name of
// the job itself, by which its events are found.
func CutEvent(e view.Event) view.Event {
	e.For, e.Text = CutKey(e.For), admit.CutText(e.Text, longestText)
	return e
}

// stored is where a text lies.
type stored struct {
	index  uint64 // of the head; 0: not written yet
	series string // of the parts; empty: the head holds the text
	parts  int
}

func (at stored) part(path string, i int) string {
	return path + "/" + at.series + "/" + strconv.Itoa(i)
}

// isPart reports whether a path below decisions is that of a part.
func isPart(path string) bool { return seriesOf(path) != "" }

// seriesOf is the series that a part belongs to.
func seriesOf(path string) string {
	_, rest, _ := strings.Cut(strings.TrimPrefix(path, decisions), "/")
	series, _, _ := strings.Cut(rest, "/")
	return series
}

// readText returns a text; one that does not exist is empty.
func readText(ctx context.Context, s Store, path string) (string, stored, error) {
	item, err := s.Get(ctx, path)
	if err != nil {
		return "", stored{}, err
	}
	at := stored{index: item.Index, series: item.Values["series"]}
	if at.series == "" {
		return item.Values["record"], at, nil
	}
	if at.parts, err = strconv.Atoi(item.Values["parts"]); err != nil || at.parts < 1 || at.parts > maxParts {
		return "", at, fmt.Errorf("variable %q names %q parts", path, item.Values["parts"])
	}
	var joined strings.Builder
	for i := range at.parts {
		part, err := s.Get(ctx, at.part(path, i))
		if err != nil {
			return "", at, err
		}
		joined.WriteString(part.Values["part"])
	}
	text, err := unpack(joined.String())
	if err != nil {
		return "", at, fmt.Errorf("parts of variable %q: %w", path, err)
	}
	return text, at, nil
}

// writeText replaces a text if it is still where it was, and returns where it is
// now. Owner is for people, and cut where it is long.
func writeText(ctx context.Context, s Store, path, owner, text string, was stored) (stored, error) {
	owner = CutKey(owner)
	head := nomad.Item{Path: path, Index: was.index, Values: map[string]string{"job": owner, "record": text}}
	now := stored{}
	if len(text) > partSize {
		var err error
		if now, err = writeParts(ctx, s, path, text); err != nil {
			return was, err
		}
		head.Values = map[string]string{"job": owner, "series": now.series, "parts": strconv.Itoa(now.parts)}
	}
	index, err := s.Put(ctx, head)
	if err != nil {
		return was, errors.Join(err, removeParts(ctx, s, path, now))
	}
	now.index = index
	// Parts that stay after a failure are deleted by the next leader.
	_ = removeParts(ctx, s, path, was)
	return now, nil
}

func writeParts(ctx context.Context, s Store, path, text string) (stored, error) {
	packed, err := pack(text)
	if err != nil {
		return stored{}, err
	}
	at := stored{series: rand.Text()}
	for ; len(packed) > 0; at.parts++ {
		if at.parts == maxParts {
			return at, errors.Join(fmt.Errorf("a record of %d bytes is too large", len(text)), removeParts(ctx, s, path, at))
		}
		size := min(partSize, len(packed))
		if _, err := s.Put(ctx, nomad.Item{Path: at.part(path, at.parts), Values: map[string]string{"part": packed[:size]}}); err != nil {
			return at, errors.Join(err, removeParts(ctx, s, path, at))
		}
		packed = packed[size:]
	}
	return at, nil
}

// removeText deletes a text if it is still where it was.
func removeText(ctx context.Context, s Store, path string, at stored) error {
	if err := s.Delete(ctx, path, at.index); err != nil {
		return err
	}
	return removeParts(ctx, s, path, at)
}

func removeParts(ctx context.Context, s Store, path string, at stored) error {
	var errs []error
	for i := range at.parts {
		errs = append(errs, removeItem(ctx, s, at.part(path, i)))
	}
	return errors.Join(errs...)
}

func removeItem(ctx context.Context, s Store, path string) error {
	item, err := s.Get(ctx, path)
	if err != nil || item.Index == 0 {
		return err
	}
	return s.Delete(ctx, path, item.Index)
}

func pack(text string) (string, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		return "", err
	}
	if err := z.Close(); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

func unpack(packed string) (string, error) {
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed)))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(z)
	return string(text), err
}
