package grant

import (
	"sort"
	"strconv"
	"unicode/utf8"
)

// A reference writes a grant into a program's argument: native programs get numbers, wasm programs paths.
type reference func(number int) (key, json string)

// byNumber refers to a descriptor as {"fd": N}.
func byNumber(number int) (key, json string) { return "fd", strconv.Itoa(number) }

// An encoder writes a tree as JSON: no spaces, the names of objects in the order of their bytes, each once.
// It is not the form of RFC 8785 where an integer is greater than 2^53: those stay exact.
type encoder struct {
	out     []byte
	numbers map[*Value]int
	refer   reference
	key     string // the key of references
}

func (e *encoder) value(v *Value) error {
	switch v.Form {
	case Null:
		e.out = append(e.out, "null"...)
	case Bool, Int, Float:
		e.out = append(e.out, v.Text...)
	case String, Binary:
		e.text(v.Text)
	case Granted:
		key, ref := e.refer(e.numbers[v])
		e.out = append(e.out, '{')
		e.text(key)
		e.out = append(append(append(e.out, ':'), ref...), '}')
	case Sequence:
		e.out = append(e.out, '[')
		for i := range v.Items {
			if i > 0 {
				e.out = append(e.out, ',')
			}
			if err := e.value(&v.Items[i]); err != nil {
				return err
			}
		}
		e.out = append(e.out, ']')
	case Mapping:
		return e.mapping(v)
	}
	if len(e.out) > MaxArgdata {
		return Errorf(v.Pos, "the argument is longer than %d bytes as JSON", MaxArgdata)
	}
	return nil
}

func (e *encoder) mapping(v *Value) error {
	if len(v.Fields) == 1 && v.Fields[0].Name == e.key {
		return Errorf(v.Fields[0].Pos, "a mapping with %q as its only key would read as a reference to a descriptor: add another key or rename it", e.key)
	}
	order := make([]int, len(v.Fields))
	for i := range order {
		order[i] = i
	}
	sort.Slice(order, func(i, j int) bool { return v.Fields[order[i]].Name < v.Fields[order[j]].Name })
	e.out = append(e.out, '{')
	for n, i := range order {
		if n > 0 {
			e.out = append(e.out, ',')
		}
		e.text(v.Fields[i].Name)
		e.out = append(e.out, ':')
		if err := e.value(&v.Fields[i].Value); err != nil {
			return err
		}
	}
	e.out = append(e.out, '}')
	return nil
}

// Text appends s as a JSON string with the fewest escapes.
func (e *encoder) text(s string) {
	const hex = "0123456789abcdef"
	e.out = append(e.out, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			e.out = append(e.out, '\\', byte(r))
		case r == '\n':
			e.out = append(e.out, '\\', 'n')
		case r == '\t':
			e.out = append(e.out, '\\', 't')
		case r == '\r':
			e.out = append(e.out, '\\', 'r')
		case r < 0x20:
			e.out = append(e.out, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			e.out = utf8.AppendRune(e.out, r)
		}
	}
	e.out = append(e.out, '"')
}
