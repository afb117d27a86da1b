package options

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/longshore/longshore/internal/invalid"
)

// FileText reads an option file into o: TOML without tables, since Kata's options have
// none. A whole parser of TOML would be a tenth of the agent's program, which is memory.
// It fails with InvalidArgument at the first line that is malformed, and names it.
func (o *Options) FileText(file string) error {
	if len(file) > maxText {
		return invalid.Errorf("option file: %d bytes are too many", len(file))
	}
	if !utf8.ValidString(file) {
		return invalid.Errorf("option file: not UTF-8")
	}
	seen := map[string]bool{}
	n := 0
	for line := range strings.Lines(file) {
		n++
		key, value, err := assignment(strings.TrimSpace(line))
		if err == nil && key != "" {
			if seen[key] {
				err = invalid.Errorf("it is there twice")
			} else {
				err = o.set(key, value, true, fromFile)
			}
			seen[key] = true
		}
		if err != nil {
			at := "option file: line " + strconv.Itoa(n)
			if key != "" {
				at += ": " + clip(key)
			}
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	return nil
}

// assignment reads one line. The key is "" for a line without an assignment.
func assignment(line string) (key, value string, err error) {
	if line == "" || line[0] == '#' {
		return "", "", nil
	}
	if line[0] == '[' {
		return "", "", invalid.Errorf("%q: the file has no tables", clip(line))
	}
	key, rest, ok := strings.Cut(line, "=")
	key = strings.TrimSpace(key)
	if !ok || key == "" || strings.Trim(key, bareKey) != "" {
		return "", "", invalid.Errorf("%q: NAME = VALUE is wanted", clip(line))
	}
	value, rest, err = scalar(strings.TrimSpace(rest))
	if err != nil {
		return key, "", err
	}
	if rest = strings.TrimSpace(rest); rest != "" && rest[0] != '#' {
		return key, "", invalid.Errorf("%q follows the value", clip(rest))
	}
	return key, value, nil
}

const bareKey = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

// scalar reads the value at the beginning of s.
func scalar(s string) (value, rest string, err error) {
	if s == "" {
		return "", "", invalid.Errorf("no value")
	}
	switch s[0] {
	case '\'':
		value, rest, ok := strings.Cut(s[1:], "'")
		if !ok {
			return "", "", invalid.Errorf("%q: the quote does not end", clip(s))
		}
		return value, rest, nil
	case '"':
		quoted, err := strconv.QuotedPrefix(s)
		if err != nil {
			return "", "", invalid.Errorf("%q: the quote does not end, or has an escape that is none", clip(s))
		}
		value, err := strconv.Unquote(quoted)
		return value, s[len(quoted):], err
	}
	end := strings.IndexAny(s, " \t#")
	if end < 0 {
		end = len(s)
	}
	value = s[:end]
	if digits := strings.ReplaceAll(value, "_", ""); value != "true" && value != "false" {
		if _, err := strconv.ParseInt(digits, 10, 64); err != nil || strings.HasPrefix(value, "_") || strings.HasSuffix(value, "_") {
			return "", "", invalid.Errorf("%q: a text in quotes, a number, true or false is wanted", clip(value))
		}
		value = digits
	}
	return value, s[end:], nil
}
