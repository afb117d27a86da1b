package metric

import (
	"bufio"
	"io"
	"strconv"
	"strings"

	v1 "github.com/longshore/longshore/api/cri/v1"
)

// TextType is the content type of what WriteText writes.
const TextType = "text/plain; version=0.0.4; charset=utf-8"

// escaped escapes a label's value.
var escaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`) //nolint:gochecknoglobals // constant

// WriteText writes the metrics of all objects in Prometheus' text format, which wants
// the samples of one metric together. Samples have no timestamps: they were read for
// this scrape. WriteText buffers only a little of its output.
func (s *Set) WriteText(w io.Writer, all []*Object) error {
	out := bufio.NewWriterSize(w, 64<<10)
	known := make([][]byte, len(all)) // for each object, the labels common to its metrics
	for i, o := range all {
		for j, v := range o.labels() {
			known[i] = appendLabel(known[i], base[j], v)
		}
	}
	var line []byte
	for i := range s.metrics {
		m := &s.metrics[i]
		begun := false
		for j, o := range all {
			for _, x := range m.samples(o) {
				if !x.value.OK {
					continue
				}
				line = line[:0]
				if !begun {
					line, begun = m.appendHead(line), true
				}
				line = append(append(append(line, m.name...), '{'), known[j]...)
				for k, v := range x.labels {
					line = appendLabel(line, m.labels[k], v)
				}
				line[len(line)-1] = '}' // replaces the last comma
				line = append(line, ' ')
				if m.unit == 1 {
					line = strconv.AppendUint(line, x.value.N, 10)
				} else {
					line = strconv.AppendFloat(line, m.fraction(x.value), 'f', -1, 64)
				}
				if _, err := out.Write(append(line, '\n')); err != nil {
					return err
				}
			}
		}
	}
	return out.Flush()
}

func (m *metric) appendHead(b []byte) []byte {
	kind := "gauge"
	if m.kind == v1.MetricType_COUNTER {
		kind = "counter"
	}
	b = append(b, "# HELP "+m.name+" "+m.help+"\n"...)
	return append(b, "# TYPE "+m.name+" "+kind+"\n"...)
}

// appendLabel adds a label and a comma.
func appendLabel(b []byte, name, value string) []byte {
	b = append(append(b, name...), '=', '"')
	if strings.ContainsAny(value, "\\\"\n") {
		value = escaped.Replace(value)
	}
	return append(append(b, strings.ToValidUTF8(value, "\uFFFD")...), '"', ',')
}
