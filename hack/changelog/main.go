// Command changelog gathers the files of docs/changes, one for each change, into
// the section Unreleased of CHANGELOG.md, and removes them. With a version as its
// argument it then gives the section this name and the date. Run it at a release,
// from the top of the repository.
//
// A file for each change has no conflict with the files of other changes, as lines
// of one list have. Start at gather.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	changelog = "CHANGELOG.md"
	changes   = "docs/changes"
	readme    = "README.md" // of changes, no change itself

	unreleased = "\n## Unreleased\n"
)

// kinds returns the kinds of change as file names have them, in the order of the
// changelog's headings.
func kinds() []string { return []string{"added", "changed", "fixed", "security"} }

// change is what one file says.
type change struct {
	name, kind, text string
}

var fileName = regexp.MustCompile(`^([a-z0-9]+(?:-[a-z0-9]+)*)\.([a-z]+)\.md$`)

// maxLine is the maximal length of a line of a change, in bytes. The changelog indents it by two, and
// no line of our documents has more than 160 columns.
const maxLine = 158

// parse reads a file called file. The error says what is wrong with its form.
func parse(file, text string) (change, error) {
	m := fileName.FindStringSubmatch(file)
	if m == nil || !slices.Contains(kinds(), m[2]) {
		return change{}, fmt.Errorf("%s: name it NAME.KIND.md, with NAME in small letters and dashes and KIND of %s", file, strings.Join(kinds(), ", "))
	}
	body, ok := strings.CutSuffix(text, "\n")
	switch {
	case !ok:
		return change{}, fmt.Errorf("%s: the last line does not end", file)
	case strings.TrimSpace(body) != body || body == "":
		return change{}, fmt.Errorf("%s: it begins or ends with white space, or is empty", file)
	case strings.Contains(body, "\n\n"):
		return change{}, fmt.Errorf("%s: it has more than one paragraph", file)
	case strings.ContainsAny(body[:1], "-*#"):
		return change{}, fmt.Errorf("%s: begin with the sentence, the list is made from it", file)
	case !strings.HasSuffix(body, "."):
		return change{}, fmt.Errorf("%s: end with a full stop", file)
	}
	for line := range strings.SplitSeq(body, "\n") {
		if len(line) > maxLine || strings.TrimSpace(line) != line {
			return change{}, fmt.Errorf("%s: a line is indented, ends with a space or has more than %d bytes: %q", file, maxLine, line)
		}
	}
	return change{name: m[1], kind: m[2], text: body}, nil
}

// read reads all changes in dir, in the order of their names. The error names
// every file that has not the form.
func read(dir string) (found []change, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var wrong []error
	for _, e := range entries {
		if e.Name() == readme {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		c, err := parse(e.Name(), string(text))
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		found = append(found, c)
	}
	return found, errors.Join(wrong...)
}

// gather returns the changelog old with the changes under the headings of their
// kinds at the end of the section Unreleased. What stands there stays.
func gather(old string, found []change) (string, error) {
	i := strings.Index(old, unreleased)
	if i < 0 {
		return "", errors.New(`there is no section Unreleased: add "## Unreleased" above the last release`)
	}
	i += len(unreleased)
	section, rest := old[i:], ""
	if next := strings.Index(section, "\n## "); next >= 0 {
		section, rest = section[:next], section[next:]
	}
	for _, kind := range kinds() {
		var list strings.Builder
		for _, c := range found {
			if c.kind == kind {
				list.WriteString("- " + strings.ReplaceAll(c.text, "\n", "\n  ") + "\n")
			}
		}
		if list.Len() > 0 {
			section = under("### "+strings.ToUpper(kind[:1])+kind[1:], section, list.String())
		}
	}
	return old[:i] + section + rest, nil
}

// under adds a list to what stands under a heading of a section, or adds both.
func under(heading, section, list string) string {
	start := strings.Index(section, "\n"+heading+"\n")
	if start < 0 {
		section = strings.TrimRight(section, "\n")
		if section != "" {
			section += "\n"
		}
		return section + "\n" + heading + "\n\n" + list
	}
	start += len(heading) + 2
	end := len(section)
	if next := strings.Index(section[start:], "\n### "); next >= 0 {
		end = start + next
	}
	return section[:start] + strings.TrimRight(section[start:end], "\n") + "\n" + list + section[end:]
}

var versionForm = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$`)

// name makes the section Unreleased that of a version, which the changelog must not have yet. An empty one
// for later changes is above it.
func name(text, version string, day time.Time) (string, error) {
	if !versionForm.MatchString(version) {
		return "", fmt.Errorf("%q is no version such as 1.2.3", version)
	}
	if strings.Contains(text, "\n## "+version+" ") {
		return "", fmt.Errorf("there is a section %s already", version)
	}
	return strings.Replace(text, unreleased, unreleased+"\n## "+version+" ("+day.Format(time.DateOnly)+")\n", 1), nil
}

// run gathers what is below the directory top and reports how many changes that
// were. The section gets the name of the version, unless that is "".
func run(top, version string, day time.Time) (int, error) {
	found, err := read(filepath.Join(top, changes))
	if err != nil {
		return 0, err
	}
	log := filepath.Join(top, changelog)
	old, err := os.ReadFile(log)
	if err != nil {
		return 0, err
	}
	text, err := gather(string(old), found)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", changelog, err)
	}
	if version != "" {
		if text, err = name(text, version, day); err != nil {
			return 0, fmt.Errorf("%s: %w", changelog, err)
		}
	}
	if err := os.WriteFile(log, []byte(text), 0o644); err != nil {
		return 0, err
	}
	for _, c := range found {
		if err := os.Remove(filepath.Join(top, changes, c.name+"."+c.kind+".md")); err != nil {
			return 0, err
		}
	}
	return len(found), nil
}

func main() {
	version := ""
	if len(os.Args) > 1 {
		version = strings.TrimPrefix(os.Args[1], "v")
	}
	n, err := run(".", version, time.Now().UTC())
	if err != nil {
		fmt.Fprintln(os.Stderr, "changelog:", err)
		os.Exit(1)
	}
	fmt.Printf("%d changes gathered into %s\n", n, changelog)
}
