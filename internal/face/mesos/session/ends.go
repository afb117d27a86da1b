package session

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
)

// line is one of the file of ends: how a session ended, or that this is to be forgotten.
type line struct {
	ID  string        `json:"id"`
	End *core.Autopsy `json:"end,omitempty"`
}

// fileLines bounds the file; beyond, it is written anew with what is remembered.
const fileLines = 4 * remembered

// Keep has the ends remembered in a file too, after reading those that it has from an
// agent before: of those whose parent, as text, is known. What cannot be written later
// is told to lost, and is kept in memory alone; after an error all is.
func (t *Table) Keep(path string, known func(session string) bool, lost func(error)) error {
	raw, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read how sessions ended: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for l := range readLines(raw) {
		t.forget(func(id string) bool { return id == l.ID })
		if l.End != nil && known(l.ID) {
			t.remember(l.ID, *l.End)
		}
	}
	t.path, t.lost = path, lost
	if err := t.rewrite(); err != nil {
		t.path = ""
		return fmt.Errorf("keep how sessions ended: %w", err)
	}
	return nil
}

// readLines are those of a file that are whole: the last one may be cut.
func readLines(raw []byte) func(yield func(line) bool) {
	return func(yield func(line) bool) {
		s := bufio.NewScanner(bytes.NewReader(raw))
		s.Buffer(nil, len(raw)+1)
		for s.Scan() {
			var l line
			if json.Unmarshal(s.Bytes(), &l) == nil && l.ID != "" && !yield(l) {
				return
			}
		}
	}
}

// Close lets go of the file.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == nil {
		return nil
	}
	f := t.file
	t.file, t.path = nil, ""
	return f.Close()
}

// remember has one end more, and the oldest go when they are too many; mu must be held.
func (t *Table) remember(id string, a core.Autopsy) {
	if t.past == nil {
		t.past = map[string]core.Autopsy{}
	}
	t.past[id] = a
	if t.order = append(t.order, id); len(t.order) > remembered {
		delete(t.past, t.order[0])
		t.order = t.order[1:]
	}
}

// note adds a line to the file; mu must be held.
func (t *Table) note(l line) {
	if t.path == "" {
		return
	}
	var err error
	if t.lines++; t.lines > fileLines {
		err = t.rewrite()
	} else {
		var b []byte
		if b, err = json.Marshal(l); err == nil {
			_, err = t.file.Write(append(b, '\n'))
		}
	}
	if err != nil {
		t.lost(fmt.Errorf("keep how sessions ended: %w", err))
	}
}

// rewrite has the file say what is remembered, and no more; mu must be held.
func (t *Table) rewrite() error {
	var b bytes.Buffer
	for _, id := range t.order {
		a := t.past[id]
		raw, err := json.Marshal(line{id, &a})
		if err != nil {
			return err
		}
		b.Write(append(raw, '\n'))
	}
	if err := atomicfile.Replace(t.path, b.Bytes(), 0o600); err != nil {
		return err
	}
	f, err := os.OpenFile(t.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if t.file != nil {
		_ = t.file.Close()
	}
	t.file, t.lines = f, len(t.order)
	return nil
}
