package unitfile

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxBytes is the size of the largest file that Parse reads.
const maxBytes = 1 << 20

// File is a parsed unit file.
type File struct {
	Sections []Section // in the order of their first line; each name once
}

// Section is a section of a file, with all its assignments in their order.
type Section struct {
	Name    string
	Entries []Entry
}

// Entry is an assignment.
type Entry struct {
	Key   string
	Value string // without spaces at the ends; the lines of a continued value are joined with a space
	Path  string // the file
	Line  int    // the number of its first line
}

// Error is an error in a file.
type Error struct {
	Path string
	Line int
	Text string
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.Path, e.Line, e.Text) }

// Parse reads the content of a file. path is for messages.
func Parse(path string, data []byte) (*File, error) {
	f := &File{}
	if len(data) > maxBytes {
		return nil, &Error{path, 1, fmt.Sprintf("the file has more than %d bytes", maxBytes)}
	}
	text := strings.TrimPrefix(string(data), "\ufeff")
	var current string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		first := i + 1
		line := strings.TrimSpace(lines[i])
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		// A backslash at the end that is not escaped continues the line with the next one that is not a comment.
		for (len(line)-len(strings.TrimRight(line, `\`)))%2 == 1 {
			line = line[:len(line)-1]
			i++
			for i < len(lines) && isComment(lines[i]) {
				i++
			}
			if i >= len(lines) {
				break
			}
			line += " " + strings.TrimSpace(lines[i])
		}
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if !utf8.ValidString(line) || strings.ContainsRune(line, 0) {
			return nil, &Error{path, first, "the line is not text in UTF-8"}
		}
		if line[0] == '[' {
			name, rest, ok := strings.Cut(line[1:], "]")
			if !ok || rest != "" || name == "" || strings.ContainsFunc(name, isControl) {
				return nil, &Error{path, first, fmt.Sprintf("%q is not [Section]", line)}
			}
			current = name
			f.section(name)
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		switch {
		case !ok || key == "" || strings.ContainsAny(key, " \t") || strings.ContainsFunc(key, isControl):
			return nil, &Error{path, first, fmt.Sprintf("%q is not Key=value", line)}
		case current == "":
			return nil, &Error{path, first, fmt.Sprintf("the assignment of %s is in no section", key)}
		}
		s := f.section(current)
		s.Entries = append(s.Entries, Entry{key, strings.TrimSpace(value), path, first})
	}
	return f, nil
}

// isComment reports whether a line is a comment.
func isComment(line string) bool {
	line = strings.TrimSpace(line)
	return line != "" && (line[0] == '#' || line[0] == ';')
}

// isControl reports whether r is a control character.
func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// section returns the section of a name, which it adds if necessary.
func (f *File) section(name string) *Section {
	for i := range f.Sections {
		if f.Sections[i].Name == name {
			return &f.Sections[i]
		}
	}
	f.Sections = append(f.Sections, Section{Name: name})
	return &f.Sections[len(f.Sections)-1]
}

// Section returns the assignments of a section, nil if there is none.
func (f *File) Section(name string) []Entry {
	for _, s := range f.Sections {
		if s.Name == name {
			return s.Entries
		}
	}
	return nil
}

// Add appends the assignments of a drop-in to those of the file.
func (f *File) Add(dropIn *File) {
	for _, s := range dropIn.Sections {
		to := f.section(s.Name)
		to.Entries = append(to.Entries, s.Entries...)
	}
}

// All returns the assignments of a key. An empty value removes the earlier ones.
func (f *File) All(section, key string) (list []Entry) {
	for _, e := range f.Section(section) {
		switch {
		case e.Key != key:
		case e.Value == "":
			list = nil
		default:
			list = append(list, e)
		}
	}
	return list
}

// Last returns the last assignment of a key, without double quotes around the value. ok says whether there is one that is
// not empty.
func (f *File) Last(section, key string) (e Entry, ok bool) {
	list := f.All(section, key)
	if len(list) == 0 {
		return Entry{}, false
	}
	e = list[len(list)-1]
	if v := e.Value; len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
		e.Value = v[1 : len(v)-1]
	}
	return e, e.Value != ""
}

// Bool returns the value of the last assignment of a key, or otherwise.
func (f *File) Bool(section, key string, otherwise bool) (bool, error) {
	e, ok := f.Last(section, key)
	if !ok {
		return otherwise, nil
	}
	switch strings.ToLower(e.Value) {
	case "1", "yes", "y", "true", "t", "on":
		return true, nil
	case "0", "no", "n", "false", "f", "off":
		return false, nil
	}
	return false, e.Errorf("%s=%s is neither true nor false", e.Key, e.Value)
}

// Errorf returns an error about the assignment.
func (e Entry) Errorf(format string, args ...any) error {
	return &Error{e.Path, e.Line, fmt.Sprintf(format, args...)}
}
