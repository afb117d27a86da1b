package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/face/nomad/msgpack"
	"github.com/longshore/longshore/internal/invalid"
)

// Values are the values of a block, by key. Unset keys are absent.
type Values struct{ of map[string]any }

// Decode reads a block that has the given fields. Nomad has validated the data by the schema of the
// plugin that ran then: an unknown key or kind is another version's, and refused. Empty data sets
// no key.
func Decode(fields []Field, data []byte) (Values, error) {
	if len(data) == 0 {
		return Values{}, nil
	}
	v, err := msgpack.Decode(data)
	if err != nil {
		return Values{}, err
	}
	return values(fields, "", v)
}

func values(fields []Field, where string, v any) (Values, error) {
	table, ok := v.(map[string]any)
	if !ok && v != nil {
		return Values{}, invalid.Errorf("config%s is %T and no block", where, v)
	}
	out := make(map[string]any, len(table))
	for _, k := range slices.Sorted(maps.Keys(table)) {
		i := slices.IndexFunc(fields, func(f Field) bool { return f.Name == k })
		if table[k] == nil {
			continue // a key of a newer schema that is not set harms nobody
		}
		if i < 0 {
			return Values{}, invalid.Errorf("config%s: this version does not know the key %q; it knows %s", where, k, names(fields))
		}
		got, err := fields[i].read(where+"."+k, table[k])
		if err != nil {
			return Values{}, err
		}
		if got != nil {
			out[k] = got
		}
	}
	return Values{out}, nil
}

func (f Field) read(where string, v any) (any, error) {
	switch f.Kind {
	case String:
		if s, ok := v.(string); ok {
			return s, nil
		}
	case Size:
		switch n := v.(type) {
		case string:
			return n, nil
		case int64, uint64: // by a schema of an older version
			return fmt.Sprint(n), nil
		}
	case Bool:
		if b, ok := v.(bool); ok {
			return b, nil
		}
	case Number:
		return number(where, v)
	case Strings:
		return stringList(where, v)
	case Map:
		return stringMap(where, v)
	case Block:
		return values(f.Fields, where, v)
	case Blocks:
		return f.blocks(where, v)
	case Words:
		v = untyped(v)
		if s, ok := v.(string); ok {
			return []string{s}, nil
		}
		if v == nil {
			return nil, nil //nolint:nilnil // it is not set
		}
		return stringList(where, v)
	case Texts:
		return f.texts(where, v)
	case Text:
		return f.text(where, v)
	}
	return nil, invalid.Errorf("config%s cannot be %T", where, v)
}

// number accepts Nomad's forms of numbers: integers if they are exact, else floats, else decimal
// text.
func number(where string, v any) (any, error) {
	var n float64
	switch x := v.(type) {
	case int64:
		n = float64(x)
	case uint64:
		n = float64(x)
	case float64:
		n = x
	case string:
		var err error
		if n, err = strconv.ParseFloat(x, 64); err != nil {
			return nil, invalid.Errorf("config%s: %q is no number", where, x)
		}
	default:
		return nil, invalid.Errorf("config%s cannot be %T", where, v)
	}
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, invalid.Errorf("config%s: %v is no number", where, v)
	}
	return n, nil
}

func stringList(where string, v any) (any, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, invalid.Errorf("config%s cannot be %T", where, v)
	}
	out := make([]string, 0, len(list))
	for _, e := range list {
		s, ok := e.(string)
		if !ok {
			return nil, invalid.Errorf("config%s has %T in it", where, e)
		}
		out = append(out, s)
	}
	return out, nil
}

// stringMap takes a map, or a list of maps, as jobs of HCL1's time give.
func stringMap(where string, v any) (any, error) {
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	out := map[string]string{}
	for _, e := range list {
		m, ok := e.(map[string]any)
		if !ok {
			return nil, invalid.Errorf("config%s cannot be %T", where, e)
		}
		for k, x := range m {
			s, ok := x.(string)
			if !ok {
				return nil, invalid.Errorf("config%s.%s cannot be %T", where, k, x)
			}
			out[k] = s
		}
	}
	return out, nil
}

func (f Field) blocks(where string, v any) (any, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, invalid.Errorf("config%s cannot be %T", where, v)
	}
	out := make([]Values, 0, len(list))
	for i, e := range list {
		b, err := values(f.Fields, fmt.Sprintf("%s[%d]", where, i), e)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}

// untyped returns the value of a key of the kind any, which Nomad sends with its type.
func untyped(v any) any {
	list, ok := v.([]any)
	if !ok || len(list) != 2 {
		return v
	}
	if typ, ok := list[0].(string); ok && (strings.HasPrefix(typ, `"`) || strings.HasPrefix(typ, "[")) && json.Valid([]byte(typ)) {
		return list[1]
	}
	return v
}

// texts takes a list of strings or of blocks, as []string or []Values.
func (f Field) texts(where string, v any) (any, error) {
	v = untyped(v)
	if v == nil {
		return nil, nil //nolint:nilnil // it is not set
	}
	list, ok := v.([]any)
	if !ok {
		return nil, invalid.Errorf("config%s cannot be %T", where, v)
	}
	if len(list) > 0 {
		if _, ok := list[0].(string); ok {
			return stringList(where, list)
		}
	}
	return f.blocks(where, list)
}

// text takes a string or a list of blocks, as string or []Values.
func (f Field) text(where string, v any) (any, error) {
	switch v := untyped(v).(type) {
	case nil:
		return nil, nil //nolint:nilnil // it is not set
	case string:
		return v, nil
	case map[string]any:
		return f.blocks(where, []any{v})
	default:
		return f.blocks(where, v)
	}
}

// get is the key's value, zero when it is not set.
func get[T any](v Values, key string) (value T) {
	value, _ = v.of[key].(T)
	return value
}

// Has reports whether the key is set.
func (v Values) Has(key string) bool { return v.of[key] != nil }

// String is a String or Size key's value, and a Text key's that is a string.
func (v Values) String(key string) string { return get[string](v, key) }

// Bool is a Bool key's value.
func (v Values) Bool(key string) bool { return get[bool](v, key) }

// Strings is a Strings or Words key's value.
func (v Values) Strings(key string) []string { return get[[]string](v, key) }

// Map is a Map key's value.
func (v Values) Map(key string) map[string]string { return get[map[string]string](v, key) }

// Block is a Block key's value.
func (v Values) Block(key string) Values { return get[Values](v, key) }

// Blocks is a Blocks key's value, and a Texts or Text key's that has blocks.
func (v Values) Blocks(key string) []Values { return get[[]Values](v, key) }

// Int is a Number key's value. InvalidArgument when it is no whole number between
// low and high; zero when it is not set.
func (v Values) Int(key string, low, high int64) (int64, error) {
	n := get[float64](v, key)
	if !v.Has(key) {
		return 0, nil
	}
	if n != math.Trunc(n) || n < float64(low) || n > float64(high) {
		return 0, invalid.Errorf("config.%s = %v is no whole number from %d to %d", key, n, low, high)
	}
	return int64(n), nil
}
