// Package migrate translates the configuration of containerd and CRI-O to the agent's.
//
// It reads files and changes nothing: a Result has the settings of the agent, the files of registries that belong beside them, and
// a note for each setting that the agent has no counterpart for. Start reading at Containerd.
package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// Result is a translated configuration.
type Result struct {
	// Settings are those of the agent's configuration that differ from its defaults, in no order.
	Settings []Setting
	// Files are the files of registries that Settings refer to.
	Files []File
	// Notes are the settings without a counterpart, and the reader's next steps.
	Notes []Note
}

// Setting is one key of the agent's configuration.
type Setting struct {
	Path  []string
	Value any
	From  string // the other runtime's key
}

// File is a file beside the agent's configuration.
type File struct {
	Name string // its absolute path
	Body []byte
	Mode fs.FileMode
}

// Note is advice about a key of the other runtime; Key is empty for the whole configuration.
type Note struct{ Key, Text string }

// String implements fmt.Stringer.
func (n Note) String() string {
	if n.Key == "" {
		return n.Text
	}
	return n.Key + ": " + n.Text
}

// set sets a key of the agent, in place of an earlier value.
func (r *Result) set(from, key string, value any) {
	r.setPath(from, strings.Split(key, "."), value)
}

func (r *Result) setPath(from string, keys []string, value any) {
	r.Settings = slices.DeleteFunc(r.Settings, func(s Setting) bool { return slices.Equal(s.Path, keys) })
	r.Settings = append(r.Settings, Setting{Path: keys, Value: value, From: from})
}

func (r *Result) note(key, format string, args ...any) {
	n := Note{key, fmt.Sprintf(format, args...)}
	if !slices.Contains(r.Notes, n) {
		r.Notes = append(r.Notes, n)
	}
}

// TOML returns the settings as a configuration file, with the notes as comments before them.
func (r *Result) TOML(title string) ([]byte, error) {
	var b bytes.Buffer
	comment(&b, title)
	for _, n := range r.Notes {
		comment(&b, "- "+n.String())
	}
	tables := map[string][]Setting{}
	var arrays []Setting // of tables, which have headers of their own
	for _, s := range r.Settings {
		if list, ok := s.Value.([]any); ok && len(list) > 0 {
			if _, ok := list[0].(table); ok {
				arrays = append(arrays, s)
				continue
			}
		}
		head := tableName(s.Path[:len(s.Path)-1])
		tables[head] = append(tables[head], s)
	}
	for _, head := range slices.Sorted(maps.Keys(tables)) {
		fmt.Fprintf(&b, "\n[%s]\n", head)
		list := tables[head]
		slices.SortFunc(list, func(x, y Setting) int { return strings.Compare(x.Path[len(x.Path)-1], y.Path[len(y.Path)-1]) })
		for _, s := range list {
			line, err := toml.Marshal(map[string]any{s.Path[len(s.Path)-1]: s.Value})
			if err != nil {
				return nil, fmt.Errorf("write %s: %w", strings.Join(s.Path, "."), err)
			}
			comment(&b, s.From)
			b.Write(line)
		}
	}
	for _, s := range arrays {
		for _, v := range s.Value.([]any) {
			body, err := toml.Marshal(v)
			if err != nil {
				return nil, fmt.Errorf("write %s: %w", strings.Join(s.Path, "."), err)
			}
			fmt.Fprintf(&b, "\n[[%s]]\n", tableName(s.Path))
			comment(&b, s.From)
			b.Write(body)
		}
	}
	return b.Bytes(), nil
}

// comment writes text as comment lines of some 110 columns.
func comment(b *bytes.Buffer, text string) {
	line := "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+len(word) > 110 && line != "#" {
			b.WriteString(line + "\n")
			line = "#  "
		}
		// Bytes of the other file must not end the comment, nor reach a terminal.
		line += " " + strings.ToValidUTF8(strings.Map(printable, word), "?")
	}
	b.WriteString(line + "\n")
}

func printable(r rune) rune {
	if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
		return '?'
	}
	return r
}

// tableName returns the name of a table, its keys quoted where that is needed.
func tableName(keys []string) string {
	var parts []string
	for _, k := range keys {
		if k == "" || strings.ContainsFunc(k, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}) {
			k = quoted(k)
		}
		parts = append(parts, k)
	}
	return strings.Join(parts, ".")
}

// quoted returns text as a string of TOML.
func quoted(text string) string {
	line, err := toml.Marshal(map[string]any{"k": text})
	if err != nil { // no string has one
		return `""`
	}
	return strings.TrimSpace(strings.TrimPrefix(string(line), "k = "))
}

// maxFile bounds a file that is read, in bytes. containerd's complete default is 12 kB.
const maxFile = 4 << 20

// table is a table of a decoded TOML file.
type table = map[string]any

// readTOML reads a file with an absolute name.
func readTOML(root fs.FS, name string) (table, error) {
	f, err := root.Open(strings.TrimPrefix(path.Clean(name), "/"))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, notThere(err))
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read %s: it has more than %d bytes: %w", name, maxFile, errdefs.ErrInvalidArgument)
	}
	t := table{}
	if err := toml.Unmarshal(data, &t); err != nil {
		var at *toml.DecodeError
		if errors.As(err, &at) {
			row, _ := at.Position()
			return nil, fmt.Errorf("%s:%d: %s: %w", name, row, strings.TrimPrefix(at.Error(), "toml: "), errdefs.ErrInvalidArgument)
		}
		return nil, fmt.Errorf("%s: %s: %w", name, strings.TrimPrefix(err.Error(), "toml: "), errdefs.ErrInvalidArgument)
	}
	return t, nil
}

func notThere(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no such file; name the configuration with --config: %w", errdefs.ErrNotFound)
	}
	return err
}

// merge copies from into to; tables are merged, other values replaced.
func merge(to, from table) {
	for k, v := range from {
		sub, isTable := v.(table)
		old, wasTable := to[k].(table)
		if isTable && wasTable {
			merge(old, sub)
			continue
		}
		to[k] = v
	}
}

// take removes a table from another and returns it; an empty one when there is none.
func take(t table, keys ...string) table {
	for i, k := range keys {
		sub, _ := t[k].(table)
		if i == len(keys)-1 {
			delete(t, k)
		}
		if t = sub; t == nil {
			return table{}
		}
	}
	return t
}

// rule translates the values of one key.
type rule struct {
	key   string // with dots; * is any part, ** at the end all below
	usual any    // the default of the other runtime; it needs no translation
	to    string // the agent's key with the same meaning, or "none"
	note  string // advice for other values
	do    func(r *Result, key string, v any)
}

// apply applies the first rule that fits to each value of t. name is the table's, for notes.
func apply(r *Result, name string, t table, rules []rule) {
	for _, k := range slices.Sorted(maps.Keys(t)) {
		walk(r, name, []string{k}, t[k], rules)
	}
}

func walk(r *Result, name string, keys []string, v any, rules []rule) {
	if sub, ok := v.(table); ok {
		for _, k := range slices.Sorted(maps.Keys(sub)) {
			walk(r, name, append(slices.Clone(keys), k), sub[k], rules)
		}
		return
	}
	at := slices.IndexFunc(rules, func(x rule) bool { return fits(strings.Split(x.key, "."), keys) })
	key := strings.TrimPrefix(name+"."+strings.Join(keys, "."), ".")
	if at < 0 {
		r.note(key, "not known to this version of longshore: check whether it matters")
		return
	}
	x := rules[at]
	switch {
	case same(v, x.usual):
	case x.do != nil:
		x.do(r, key, v)
	case x.to == "none":
	case x.to != "":
		r.set(key, x.to, v)
	default:
		if whole, ok := strings.CutSuffix(x.key, ".**"); ok { // one note for all of the table
			key = strings.TrimPrefix(name+"."+whole, ".")
		}
		r.note(key, "%s", x.note)
	}
}

func fits(pattern, keys []string) bool {
	if n := len(pattern); n > 0 && pattern[n-1] == "**" {
		return len(keys) >= n-1 && fits(pattern[:n-1], keys[:n-1])
	}
	return slices.EqualFunc(pattern, keys, func(p, k string) bool { return p == "*" || p == k })
}

// same reports whether a value is a default: the given one, or an empty one of its kind.
func same(v, usual any) bool {
	switch v := v.(type) {
	case []any:
		want, _ := usual.([]string)
		return slices.Equal(texts(v), want)
	case int64:
		want, ok := usual.(int)
		return ok && v == int64(want) || usual == nil && v == 0
	case table:
		return len(v) == 0
	case string:
		want, _ := usual.(string)
		return v == "" || v == want || sameTime(v, want)
	default:
		return v == usual || usual == nil && v == false
	}
}

// sameTime reports whether both are the same duration, such as 4h and 4h0m0s.
func sameTime(a, b string) bool {
	x, xerr := time.ParseDuration(a)
	y, yerr := time.ParseDuration(b)
	return xerr == nil && yerr == nil && x == y
}

// texts returns the strings of a list.
func texts(v any) (list []string) {
	all, _ := v.([]any)
	for _, x := range all {
		if s, ok := x.(string); ok {
			list = append(list, s)
		}
	}
	return list
}
