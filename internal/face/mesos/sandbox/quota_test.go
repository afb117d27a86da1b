package sandbox

import "testing"

func TestQuotaRequest(t *testing.T) {
	for _, c := range []struct {
		used, limit uint64
		want        string
	}{
		{1 << 20, 1 << 20, ""},
		{0, 0, ""},
		{1<<20 + 1, 1 << 20, "Disk usage (1048577B) exceeds quota (1MB)"},
		{12 << 10, 0, "Disk usage (12KB) exceeds quota (0B)"},
		{3 << 30, 2 << 40, ""},
		{3 << 40, 2 << 30, "Disk usage (3TB) exceeds quota (2GB)"},
	} {
		call := QuotaRequest(c.used, c.limit)
		got, ok := QuotaMessage(call)
		if got != c.want || ok != (c.want != "") {
			t.Errorf("%d of %d: %q", c.used, c.limit, call)
		}
	}
	if got, ok := QuotaMessage("KILL_CONTAINER"); ok {
		t.Errorf("of another request: %q", got)
	}
	if got, ok := QuotaMessage(DepthRequest()); !ok || got != ErrTooDeep.Error() {
		t.Errorf("%q", got)
	}
}
