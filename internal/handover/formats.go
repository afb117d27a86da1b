package handover

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Number is the number of the format of Passed.
const Number = 1

// Format is a format that a program of the agent leaves for the next one: of a file, of Passed, or of a protocol with a process that
// continues.
type Format struct {
	Name string
	// Oldest is the oldest number that a program reads, and Number the one that it writes, the newest that it reads.
	Oldest, Number int
}

// statement is the first word of a program's statement, and maxFormats the limit of formats in it.
const (
	statement  = "longshore-formats"
	maxFormats = 64
)

// State returns the statement of a program: its release and a line for each format.
func State(release string, list []Format) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s release %s\n", statement, release)
	for _, f := range list {
		fmt.Fprintf(&b, "%s %d %d\n", f.Name, f.Oldest, f.Number)
	}
	return b.String()
}

// ParseStatement parses the statement of another program. Later releases may add to the ends of lines. InvalidArgument for any other text.
func ParseStatement(text string) (release string, list []Format, err error) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	head := strings.Fields(lines[0])
	if len(head) < 3 || head[0] != statement || head[1] != "release" || len(lines) > maxFormats {
		return "", nil, fmt.Errorf("no statement of formats: %.100q: %w", text, errdefs.ErrInvalidArgument)
	}
	seen := map[string]bool{}
	for _, line := range lines[1:] {
		words := strings.Fields(line)
		if len(words) < 3 || seen[words[0]] {
			return "", nil, fmt.Errorf("the format %.100q: %w", line, errdefs.ErrInvalidArgument)
		}
		f := Format{Name: words[0]}
		seen[f.Name] = true
		var bad [2]error
		f.Oldest, bad[0] = strconv.Atoi(words[1])
		f.Number, bad[1] = strconv.Atoi(words[2])
		if errors.Join(bad[:]...) != nil || f.Oldest < 1 || f.Oldest > f.Number {
			return "", nil, fmt.Errorf("the numbers of the format %.100q: %w", line, errdefs.ErrInvalidArgument)
		}
		list = append(list, f)
	}
	return head[2], list, nil
}

// Readable returns FailedPrecondition if the next program, of a release, cannot read the formats of the present one.
func Readable(release string, next, present []Format) error {
	known := map[string]Format{}
	for _, f := range next {
		known[f.Name] = f
	}
	for _, have := range present {
		f, ok := known[have.Name]
		switch {
		case !ok:
			return fmt.Errorf("longshore of release %s does not know the format of %s; this node has %d: %w", release, have.Name, have.Number, errdefs.ErrFailedPrecondition)
		case have.Number < f.Oldest || have.Number > f.Number:
			return fmt.Errorf("longshore of release %s reads %s of %s; this node has %d: %w", release, numbers(f), have.Name, have.Number, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// numbers names the numbers that a program reads.
func numbers(f Format) string {
	if f.Oldest == f.Number {
		return "format " + strconv.Itoa(f.Number)
	}
	return fmt.Sprintf("the formats %d to %d", f.Oldest, f.Number)
}
