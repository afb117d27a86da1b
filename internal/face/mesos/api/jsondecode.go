package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Unmarshal reads data into m, which is reset first. What it takes is what Mesos
// takes: unknown names are passed over, null leaves a field unset, a number or a
// truth may be a string, and one bare element may stand for a list. An error's
// text is the one that a client of Mesos knows.
func UnmarshalJSON(data []byte, m proto.Message) error {
	proto.Reset(m)
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("more follows after the value")
		}
	}
	if err != nil {
		return fmt.Errorf("Failed to parse body into JSON: %w", err) //nolint:staticcheck // Mesos' text
	}
	if deeper(v, maxDepth) {
		return fmt.Errorf("Failed to parse body into JSON: it is nested more than %d deep", maxDepth) //nolint:staticcheck // Mesos' text
	}
	o, ok := v.(map[string]any)
	if !ok {
		return errors.New("Expecting a JSON object") //nolint:staticcheck // Mesos' text
	}
	if err := readJSONMessage(m.ProtoReflect(), o); err != nil {
		return err
	}
	if missing := missingFields(m); len(missing) > 0 {
		return errors.New("Missing required fields: " + strings.Join(missing, ", "))
	}
	return nil
}

// MaxDepth bounds how far messages are nested in each other, as protobuf bounds it
// in C++.
const maxDepth = 100

// deeper reports whether v has more than so many levels.
func deeper(v any, levels int) bool {
	below := func(v any) bool { return deeper(v, levels-1) }
	switch v := v.(type) {
	case map[string]any:
		if levels == 0 {
			return true
		}
		for _, e := range v {
			if below(e) {
				return true
			}
		}
	case []any:
		return levels == 0 || slices.ContainsFunc(v, below)
	}
	return false
}

// maxMissing bounds how many fields an error names.
const maxMissing = 100

// Missing lists the required fields that are not set in m and below it, as paths:
// the first hundred and a few.
func missingFields(m proto.Message) []string { return missingBelow(m.ProtoReflect(), "") }

func missingBelow(m protoreflect.Message, path string) (list []string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := path + string(f.Name())
		switch {
		case !m.Has(f):
			if f.Cardinality() == protoreflect.Required {
				list = append(list, name)
			}
		case f.Message() == nil:
		case f.IsList():
			for j := 0; j < m.Get(f).List().Len() && len(list) < maxMissing; j++ {
				list = append(list, missingBelow(m.Get(f).List().Get(j).Message(), name+"["+strconv.Itoa(j)+"].")...)
			}
		default:
			list = append(list, missingBelow(m.Get(f).Message(), name+".")...)
		}
	}
	return list
}

func readJSONMessage(m protoreflect.Message, o map[string]any) error {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		v, ok := o[string(f.Name())]
		if !ok || v == nil {
			continue
		}
		var err error
		if f.IsList() {
			err = readJSONList(m, f, v)
		} else {
			err = readJSONField(m, f, v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readJSONField(m protoreflect.Message, f protoreflect.FieldDescriptor, v any) error {
	if f.Message() != nil {
		o, ok := v.(map[string]any)
		if !ok {
			return wrongJSONKind(f, v)
		}
		return readJSONMessage(m.Mutable(f).Message(), o)
	}
	value, err := jsonScalar(f, v)
	if err == nil && value.IsValid() {
		m.Set(f, value)
	}
	return err
}

func readJSONList(m protoreflect.Message, f protoreflect.FieldDescriptor, v any) error {
	all, ok := v.([]any)
	if !ok {
		all = []any{v}
	}
	list := m.Mutable(f).List()
	for _, v := range all {
		if v == nil {
			continue
		}
		if f.Message() != nil {
			o, ok := v.(map[string]any)
			if !ok {
				return wrongJSONKind(f, v)
			}
			if err := readJSONMessage(list.AppendMutable().Message(), o); err != nil {
				return err
			}
			continue
		}
		value, err := jsonScalar(f, v)
		if err != nil {
			return err
		}
		if value.IsValid() {
			list.Append(value)
		}
	}
	return nil
}

// notExpecting says that v is of another kind than the field.
func wrongJSONKind(f protoreflect.FieldDescriptor, v any) error {
	kind := "null"
	switch v.(type) {
	case map[string]any:
		kind = "object"
	case []any:
		kind = "array"
	case string:
		kind = "string"
	case json.Number:
		kind = "number"
	case bool:
		kind = "boolean"
	}
	return fmt.Errorf("Not expecting a JSON %s for field '%s'", kind, f.Name()) //nolint:staticcheck // Mesos' text
}

// scalar is v as the field's value; the invalid Value leaves the field unset.
func jsonScalar(f protoreflect.FieldDescriptor, v any) (protoreflect.Value, error) {
	var none protoreflect.Value
	s, isString := v.(string)
	switch f.Kind() {
	case protoreflect.StringKind:
		if isString {
			return protoreflect.ValueOfString(s), nil
		}
	case protoreflect.BytesKind:
		if isString {
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				return none, fmt.Errorf("Failed to base64 decode bytes field '%s': %w", f.Name(), err) //nolint:staticcheck // Mesos' text
			}
			return protoreflect.ValueOfBytes(b), nil
		}
	case protoreflect.EnumKind:
		if isString {
			return jsonEnum(f, s)
		}
	case protoreflect.BoolKind:
		if b, ok := v.(bool); ok {
			return protoreflect.ValueOfBool(b), nil
		}
		if isString {
			if s != "true" && s != "false" {
				return none, fmt.Errorf("Failed to parse '%s' as a JSON boolean for field '%s'", s, f.Name()) //nolint:staticcheck // Mesos' text
			}
			return protoreflect.ValueOfBool(s == "true"), nil
		}
	default:
		if n, ok := v.(json.Number); ok {
			return jsonNumber(f, string(n))
		}
		if isString {
			return jsonNumber(f, s)
		}
	}
	return none, wrongJSONKind(f, v)
}

// enum: a name that is not known is no name where it need not be one.
func jsonEnum(f protoreflect.FieldDescriptor, s string) (protoreflect.Value, error) {
	if d := f.Enum().Values().ByName(protoreflect.Name(s)); d != nil {
		return protoreflect.ValueOfEnum(d.Number()), nil
	}
	if f.Cardinality() == protoreflect.Required {
		return protoreflect.Value{}, fmt.Errorf("Failed to find enum for '%s'", s) //nolint:staticcheck // Mesos' text
	}
	return protoreflect.Value{}, nil
}

func jsonNumber(f protoreflect.FieldDescriptor, s string) (protoreflect.Value, error) {
	var v protoreflect.Value
	var err error
	switch f.Kind() {
	case protoreflect.DoubleKind:
		var n float64
		if n, err = parseDouble(s); err == nil {
			v = protoreflect.ValueOfFloat64(n)
		}
	case protoreflect.Int32Kind:
		var n int64
		if n, err = strconv.ParseInt(wholeNumber(s), 10, 32); err == nil {
			v = protoreflect.ValueOfInt32(int32(n))
		}
	case protoreflect.Int64Kind:
		var n int64
		if n, err = strconv.ParseInt(wholeNumber(s), 10, 64); err == nil {
			v = protoreflect.ValueOfInt64(n)
		}
	case protoreflect.Uint32Kind:
		var n uint64
		if n, err = strconv.ParseUint(wholeNumber(s), 10, 32); err == nil {
			v = protoreflect.ValueOfUint32(uint32(n))
		}
	case protoreflect.Uint64Kind:
		var n uint64
		if n, err = strconv.ParseUint(wholeNumber(s), 10, 64); err == nil {
			v = protoreflect.ValueOfUint64(n)
		}
	default:
		err = fmt.Errorf("kind %s", f.Kind())
	}
	if err != nil {
		return v, fmt.Errorf("Failed to parse '%s' as a JSON number for field '%s'", s, f.Name()) //nolint:staticcheck // Mesos' text
	}
	return v, nil
}

func parseDouble(s string) (float64, error) {
	switch s {
	case "Infinity":
		return math.Inf(1), nil
	case "-Infinity":
		return math.Inf(-1), nil
	}
	n, err := strconv.ParseFloat(s, 64)
	if err == nil && (math.IsNaN(n) || math.IsInf(n, 0)) {
		err = strconv.ErrSyntax
	}
	return n, err
}

// maxExponent bounds the digits that an exponent can make.
const maxExponent = 40

// whole turns 5.0 and 1e3, which are integers too, into plain digits.
func wholeNumber(s string) string {
	if !strings.ContainsAny(s, ".eE") {
		return s
	}
	if _, exponent, ok := strings.Cut(strings.ToLower(s), "e"); ok {
		if n, err := strconv.Atoi(exponent); err != nil || n < -maxExponent || n > maxExponent {
			return s
		}
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok || !r.IsInt() {
		return s
	}
	return r.Num().String()
}
