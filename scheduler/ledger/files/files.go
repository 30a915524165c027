// SPDX-License-Identifier: MPL-2.0

// Package files keeps the ledger in a folder: a segment of lines of JSON per day;
// only the last one is appended to.
//
//	2026-11-21.jsonl   complete; removed when it is older than the time that is kept
//	2026-11-22.jsonl   begins with the holdings at the start of the day, and grows
//	lock               held by the process that writes
//
// So every segment can be read alone, and one that goes takes nothing of the others with
// it. A line that was cut off by a crash is removed; Nomad is asked for its content again.
package files

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-gpu/nomad-gpu/scheduler/ledger"
)

// Options bound the ledger.
type Options struct {
	Keep     time.Duration // how long
	MaxBytes int64         // of all segments together; the one in use always stays
	Now      func() time.Time
	// Trouble hears of lines that cannot be read, and of segments that go before their time.
	Trouble func(error)
}

// Store is a ledger in a folder. Its methods may be used by many goroutines.
type Store struct {
	Options
	dir  string
	lock *os.File

	mu   sync.Mutex
	day  string   // of the segment in use; empty: none yet
	file *os.File // that segment
	size int64    // of complete lines
	open map[ledger.Key]ledger.Record
	seen time.Time
}

const (
	suffix    = ".jsonl"
	dayLayout = "2006-01-02"
	// version is what this release writes; segments of a later one are not read.
	version = 1
)

// header is the first line of a segment.
type header struct {
	Kind    string `json:"k"`
	Version int    `json:"v"`
}

const kindSegment = "segment"

// ErrSetUp is wrapped by errors that do not go away by waiting: the path cannot be a folder,
// another process writes to it, or a later release wrote it.
var ErrSetUp = errors.New("the ledger is not set up right")

// Open opens a folder, which is made if it is not there. One process may have it open.
func Open(dir string, o Options) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENAMETOOLONG) {
			err = errors.Join(ErrSetUp, err)
		}
		return nil, fmt.Errorf("make the ledger's folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the ledger: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock the ledger: %w: another process writes to %s; give each replica a folder of its own", ErrSetUp, dir)
		}
		return nil, fmt.Errorf("lock the ledger in %s: %w", dir, err)
	}
	s := &Store{Options: o, dir: dir, lock: lock, open: map[ledger.Key]ledger.Record{}}
	if err := s.resume(); err != nil {
		lock.Close()
		return nil, err
	}
	return s, nil
}

// Close lets another process write.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.file != nil {
		err = s.file.Close()
	}
	return errors.Join(err, s.lock.Close())
}

// resume goes on in the last segment.
func (s *Store) resume() error {
	days, err := s.days()
	if err != nil || len(days) == 0 {
		return err
	}
	day := days[len(days)-1]
	if err := s.read(day, func(r *ledger.Record) { s.take(*r) }); err != nil {
		return err
	}
	return s.use(day)
}

// use appends to a segment from now on. A last line without an end is cut off.
func (s *Store) use(day string) error {
	file, err := os.OpenFile(s.path(day), os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the ledger: %w", err)
	}
	size, err := wholeLines(file)
	if err == nil {
		err = file.Truncate(size)
	}
	if err != nil {
		file.Close()
		return fmt.Errorf("open the ledger: %w", err)
	}
	s.day, s.file, s.size = day, file, size
	return nil
}

// wholeLines is the length of a file up to the end of its last whole line.
func wholeLines(file *os.File) (int64, error) {
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	const block = 64 << 10
	for end := info.Size(); end > 0; {
		begin := max(0, end-block)
		part := make([]byte, end-begin)
		if _, err := file.ReadAt(part, begin); err != nil {
			return 0, err
		}
		if at := bytes.LastIndexByte(part, '\n'); at >= 0 {
			return begin + int64(at) + 1, nil
		}
		end = begin
	}
	return 0, nil
}

// days lists the segments, oldest first.
func (s *Store) days() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the ledger: %w", err)
	}
	var days []string
	for _, e := range entries {
		day, found := strings.CutSuffix(e.Name(), suffix)
		if _, err := time.Parse(dayLayout, day); found && err == nil {
			days = append(days, day)
		}
	}
	return days, nil // ReadDir sorts
}

func (s *Store) path(day string) string { return filepath.Join(s.dir, day+suffix) }

func dayOf(t time.Time) string { return t.UTC().Format(dayLayout) }

// take follows the holdings.
func (s *Store) take(r ledger.Record) {
	switch r.Kind {
	case ledger.KindHold:
		if _, known := s.open[r.Key]; !known {
			s.open[r.Key] = r
		}
	case ledger.KindEnd:
		delete(s.open, r.Key)
	}
	if r.Kind == ledger.KindSeen && r.At.After(s.seen) {
		s.seen = r.At
	}
}

// Recall returns the holdings that the ledger knows, by key, and until when the service
// watched.
func (s *Store) Recall(context.Context) (held []ledger.Record, seen time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held(), s.seen, nil
}

func (s *Store) held() []ledger.Record {
	held := make([]ledger.Record, 0, len(s.open))
	for _, r := range s.open {
		held = append(held, r)
	}
	slices.SortFunc(held, func(x, y ledger.Record) int { return cmp.Or(x.At.Compare(y.At), x.Key.Compare(y.Key)) })
	return held
}

// Append stores records: all of them, or none with an error.
func (s *Store) Append(_ context.Context, records []ledger.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.turn(); err != nil {
		return fmt.Errorf("begin a day in the ledger: %w", err)
	}
	var text bytes.Buffer
	for i := range records {
		if err := writeLine(&text, &records[i]); err != nil {
			return err
		}
	}
	_, err := s.file.WriteAt(text.Bytes(), s.size)
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil { // its written part goes, so that nothing is said twice
		return fmt.Errorf("write to the ledger: %w", errors.Join(err, s.file.Truncate(s.size)))
	}
	s.size += int64(text.Len())
	for _, r := range records {
		s.take(r)
	}
	return nil
}

func writeLine(to *bytes.Buffer, r any) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode for the ledger: %w", err)
	}
	to.Write(text)
	to.WriteByte('\n')
	return nil
}

// turn begins a segment when a new day has begun. It has all holdings before
// it has its name.
func (s *Store) turn() error {
	day := dayOf(s.Now())
	if s.day >= day {
		return nil // also when the clock was put back
	}
	var head bytes.Buffer
	if err := writeLine(&head, header{kindSegment, version}); err != nil {
		return err
	}
	if !s.seen.IsZero() {
		if err := writeLine(&head, ledger.Record{Kind: ledger.KindSeen, At: s.seen}); err != nil {
			return err
		}
	}
	for _, r := range s.held() {
		if err := writeLine(&head, &r); err != nil {
			return err
		}
	}
	if err := replace(s.path(day), head.Bytes()); err != nil {
		return err
	}
	if s.file != nil {
		s.file.Close() //nolint:errcheck // it was synced with each record
	}
	s.file, s.day = nil, ""
	if err := s.use(day); err != nil {
		return err
	}
	return s.prune(day)
}

// replace writes a file as a whole.
func replace(path string, text []byte) error {
	part, err := os.CreateTemp(filepath.Dir(path), ".segment-*")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name()) //nolint:errcheck // it has another name by now
	_, err = part.Write(text)
	if err == nil {
		err = part.Sync()
	}
	if err = errors.Join(err, part.Close()); err != nil {
		return err
	}
	if err := os.Rename(part.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// prune removes segments that are too old, and the oldest while all are too large.
func (s *Store) prune(current string) error {
	days, err := s.days()
	if err != nil {
		return err
	}
	sizes, sum := map[string]int64{}, int64(0)
	for _, day := range days {
		if info, err := os.Stat(s.path(day)); err == nil {
			sizes[day] = info.Size()
			sum += info.Size()
		}
	}
	oldest := dayOf(s.Now().Add(-s.Keep))
	for _, day := range days {
		switch {
		case day == current || day >= oldest && sum <= s.MaxBytes:
			continue
		case day >= oldest:
			s.Trouble(fmt.Errorf("the ledger of %s is removed before its time: all of it has %d MB and may have %d (ledger.max_size_mb)", day, sum>>20, s.MaxBytes>>20))
		}
		if err := os.Remove(s.path(day)); err != nil {
			return err
		}
		sum -= sizes[day]
	}
	return nil
}

// Read hands over the records that say something of a time: of its days, with the holdings
// when they began, and of those that follow, which have late records, until one
// says that the service watched by then.
func (s *Store) Read(ctx context.Context, from, to time.Time, each func(*ledger.Record)) error {
	days, err := s.days()
	if err != nil {
		return err
	}
	first, last, watched := dayOf(from), dayOf(to), false
	for _, day := range days {
		if day < first {
			continue
		}
		err := s.read(day, func(r *ledger.Record) {
			watched = watched || r.Kind == ledger.KindSeen && !r.At.Before(to)
			each(r)
		})
		if err = cmp.Or(err, ctx.Err()); err != nil || day > last && watched {
			return err
		}
	}
	return nil
}

// Ended lists what ended in records since a time, which a segment of that day or a later
// one holds.
func (s *Store) Ended(ctx context.Context, since time.Time) (map[ledger.Key]bool, error) {
	ended := map[ledger.Key]bool{}
	err := s.Read(ctx, since, s.Now(), func(r *ledger.Record) {
		if r.Kind == ledger.KindEnd {
			ended[r.Key] = true
		}
	})
	return ended, err
}

// longest is the longest line that is read.
const longest = 1 << 20

// skipLine reads to the end of a line.
func skipLine(lines *bufio.Reader) error {
	for {
		if _, err := lines.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// read reads the whole lines of a segment. One that is not valid is left out, and told of.
func (s *Store) read(day string, each func(*ledger.Record)) error {
	file, err := os.Open(s.path(day))
	if errors.Is(err, os.ErrNotExist) {
		return nil // removed meanwhile
	}
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	defer file.Close()
	lines := bufio.NewReaderSize(file, longest)
	for number := 1; ; number++ {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			s.Trouble(fmt.Errorf("line %d of %s is too long, and is left out", number, s.path(day)))
			if err = skipLine(lines); err == nil {
				continue
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil // what follows the last whole line is being written, or was cut off
		case err != nil:
			return fmt.Errorf("read line %d of %s: %w", number, s.path(day), err)
		}
		var r ledger.Record
		var h header
		if err := json.Unmarshal(line, &r); err != nil {
			s.Trouble(fmt.Errorf("line %d of %s is not valid and is left out: %w", number, s.path(day), err))
			continue
		}
		if r.Kind != kindSegment {
			each(&r)
		} else if json.Unmarshal(line, &h) == nil && h.Version > version {
			return fmt.Errorf("read %s: %w: it has version %d, this release reads 1 to %d", s.path(day), ErrSetUp, h.Version, version)
		}
	}
}
