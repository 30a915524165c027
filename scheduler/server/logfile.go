// SPDX-License-Identifier: MPL-2.0

package server

import (
	"os"
	"sync"
)

// LogFile is a file that is only appended to, and that is opened again after
// it was renamed.
type LogFile struct {
	path string
	mu   sync.Mutex
	file *os.File
}

// OpenLogFile opens or makes a file that only its owner may read.
func OpenLogFile(path string) (*LogFile, error) {
	file, err := openLog(path)
	if err != nil {
		return nil, err
	}
	return &LogFile{path: path, file: file}, nil
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// Write appends.
func (l *LogFile) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Write(text)
}

// Reopen goes on in whatever the path names now. On an error it stays with the
// file that is open.
func (l *LogFile) Reopen() error {
	file, err := openLog(l.path)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.file
	l.file = file
	return old.Close()
}

// Close closes the file.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
