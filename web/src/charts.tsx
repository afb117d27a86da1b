// Charts over the last minutes, as SVG.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Series {
  name: string;
  values: (number | null)[];
}

/** Lines of values from 0 to max; missing values are gaps. The newest value is at the right edge. */
export function Chart({ series, max, slots, label, unit }: { series: Series[]; max: number; slots: number; label: string; unit: (n: number) => string }) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(300);
  const [at, setAt] = useState<number | null>(null);
  useLayoutEffect(() => {
    setWidth(box.current!.clientWidth);
  }, []);
  useEffect(() => {
    const resized = new ResizeObserver(() => setWidth(box.current!.clientWidth));
    resized.observe(box.current!);
    return () => resized.disconnect();
  }, []);
  const h = 64;
  const step = width / (slots - 1);
  const x = (i: number, n: number) => width - (n - 1 - i) * step;
  const y = (v: number) => h - 1 - (Math.min(v, max) / (max || 1)) * (h - 3);
  const path = (values: (number | null)[], area: boolean) => {
    let d = "";
    let from: number | null = null;
    let last = 0;
    values.forEach((v, i) => {
      if (v === null) {
        if (area && from !== null) d += `L${last.toFixed(1)},${h}L${from.toFixed(1)},${h}Z`;
        from = null;
        return;
      }
      last = x(i, values.length);
      d += `${from === null ? "M" : "L"}${last.toFixed(1)},${y(v).toFixed(1)}`;
      if (from === null) from = last;
    });
    if (area && from !== null) d += `L${last.toFixed(1)},${h}L${(from as number).toFixed(1)},${h}Z`;
    return d;
  };
  const newest = series.map((s) => s.values[s.values.length - 1]).filter((v): v is number => v !== null && v !== undefined);
  const n = Math.max(0, ...series.map((s) => s.values.length));
  const index = at === null ? -1 : Math.round(n - 1 - (width - at) / step);
  return (
    <div class="chart" ref={box} onPointerMove={(e) => setAt(e.offsetX)} onPointerLeave={() => setAt(null)}>
      <svg width={width} height={h} viewBox={`0 0 ${width} ${h}`} role="img" aria-label={`${label}: ${newest.map(unit).join(", ") || "no data yet"}`}>
        <line class="grid" x1={0} x2={width} y1={y(max / 2)} y2={y(max / 2)} />
        <line class="grid" x1={0} x2={width} y1={h - 0.5} y2={h - 0.5} />
        {series.map((s, i) => (
          <g key={s.name} class={"s" + i}>
            {series.length === 1 && <path class="area" d={path(s.values, true)} />}
            <path class="line" d={path(s.values, false)} />
            {typeof s.values[s.values.length - 1] === "number" && <circle cx={width - 2} cy={y(s.values[s.values.length - 1] as number)} r={2} />}
          </g>
        ))}
        {index >= 0 && index < n && <line class="cursor" x1={x(index, n)} x2={x(index, n)} y1={0} y2={h} />}
      </svg>
      {index >= 0 && index < n && (
        <span class="tip">
          {series
            .map((s) => (s.values[index] === null || s.values[index] === undefined ? null : (series.length > 1 ? s.name + " " : "") + unit(s.values[index] as number)))
            .filter(Boolean)
            .join(" · ")}
        </span>
      )}
    </div>
  );
}
