"""DRAM: the bandwidth that a technology sustains, from its timings, by the pattern of access.

A share of the peak is lost to refresh, to turning the bus between reads and writes, and to rows that have to be opened.
Streams lose to the first only, since banks hide one another's rows; KV pages scattered over rows lose to the last. The
forms follow from the timings; the constants named below were fitted to cycle-accurate simulation. Everything
broadcasts. Form, fit and error: `docs/machines.md`.
"""

from dataclasses import dataclass, fields

import numpy as np
from pydantic import Field

from archsim.arrays import Array, array
from archsim.catalog import Mark, StrictModel, fetch, validate
from archsim.fields import Bandwidth, Bytes, Count, Positive, Seconds
from archsim.sources import Source, SourceEntry, check_sources, sources_of
from archsim.yamlmarks import shown

STACKED = 0.75  # share of closing and opening rows that each further stack adds to an all-bank refresh
WATERMARK = 0.6  # share of the write queue that is written before the bus turns back
SHARED_QUEUE = 0.7  # of its queue a channel sees of one pseudo-channel, where two share a controller
BLEND = 4.5  # exponent of the norm that joins bus, activations and banks
GROUP_BLEND = 12.0  # exponent of the norm that joins them with the pace of a bank group


class ChannelFile(StrictModel):
    """What one channel, or one pseudo-channel, moves and holds."""

    bandwidth: Bandwidth = Field(gt=0.0, description="of one channel, payload")
    burst: Bytes = Field(gt=0.0, description="payload of one access")
    row: Bytes = Field(gt=0.0, description="payload of one open row")
    banks: Count = Field(description="banks of one rank or stack")
    groups: Count = Field(description="bank groups")
    stacks: Count = Field(1, description="ranks or stack identifiers, each with banks of its own")
    pseudo: Count = Field(1, description="pseudo-channels that share one controller")


class TimingFile(StrictModel):
    """JEDEC timings."""

    rcd: Seconds = Field(description="tRCD: from opening a row to reading it")
    rp: Seconds = Field(description="tRP: closing a row")
    rc: Seconds = Field(description="tRC: from opening a row of a bank to opening its next")
    rrd: Seconds = Field(description="tRRD_S: between rows of different groups")
    faw: Seconds = Field(0.0, description="tFAW: in which four rows may be opened")
    ccd_long: Seconds = Field(description="tCCD_L: between accesses to one bank group")
    rtp: Seconds = Field(description="tRTP: from a read to closing its row")
    refresh_all: Seconds = Field(description="tRFCab: refresh of all banks")
    refresh_interval: Seconds = Field(gt=0.0, description="tREFI")
    refresh_interval_bank: Seconds = Field(0.0, description="tREFIpb; 0: tREFI over the banks")
    read_to_write: Seconds = Field(description="turning the bus from reads to writes")
    write_to_read: Seconds = Field(description="turning it back: tCWL, the burst and tWTR")


class QueueFile(StrictModel):
    """Requests that a controller can choose among."""

    reads: Positive
    writes: Positive


class TechnologyFile(StrictModel):
    """A file of `chips/memory/`."""

    name: str
    technology: str = Field(description="the word that chip files use, such as HBM3e")
    typical: bool = Field(False, description="whether it stands for a technology whose chip names no timings")
    channel: ChannelFile
    timing: TimingFile
    queue: QueueFile
    sources: tuple[SourceEntry, ...]


@dataclass(frozen=True, eq=False)
class Timings:
    """Timings (s) and shape of one channel of a technology; every number is an array that broadcasts.

    `bandwidth` is B/s, `burst` and `row` are B, queues count requests.
    """

    bandwidth: Array
    burst: Array
    row: Array
    banks: Array
    groups: Array
    stacks: Array
    pseudo: Array
    rcd: Array
    rp: Array
    rc: Array
    rrd: Array
    faw: Array
    ccd_long: Array
    rtp: Array
    refresh_all: Array
    refresh_interval: Array
    refresh_interval_bank: Array
    read_to_write: Array
    write_to_read: Array
    reads: Array
    writes: Array

    @property
    def burst_time(self) -> Array:
        """Seconds of the bus for one access."""
        return self.burst / self.bandwidth

    @property
    def all_banks(self) -> Array:
        """Banks of all stacks."""
        return self.banks * self.stacks

    @property
    def activation(self) -> Array:
        """Seconds between two rows opened in a row, whatever their banks."""
        return np.maximum(self.rrd, self.faw / 4.0)

    @property
    def reopening(self) -> Array:
        """Seconds in which a bank whose row was just read does nothing but change it."""
        return self.rtp + self.rp + self.rcd


@dataclass(frozen=True, eq=False)
class Technology:
    """A DRAM technology of the catalogue."""

    name: str
    technology: str
    typical: bool
    timings: Timings
    sources: tuple[Source, ...] = ()


def load_technology(name: str, mark: Mark | None = None) -> Technology:
    """The DRAM technology of a name or path. Raises CatalogError with every fault of its file."""
    document = fetch("chips/memory", name, mark)
    file = validate(TechnologyFile, document)
    check_sources(document, file.sources, skip=("name", "technology", "typical"))
    given = {**dict(file.channel), **dict(file.timing), **dict(file.queue)}
    timings = Timings(**{item.name: array(given[item.name]) for item in fields(Timings)})
    return Technology(file.name, file.technology, file.typical, timings, sources_of(file.sources, shown(document.path)))


# Shares of the peak


def refresh(t: Timings, per_bank: bool = False) -> Array:
    """What refresh leaves of the time: 1 - (tRFCab + rows closed and opened again) / tREFI.

    Bank by bank, as a controller that keeps sending to the refreshing bank: 1 - pseudo-channels x tRP / tREFIpb.
    """
    if not per_bank:
        reopened = (1.0 + STACKED * (t.stacks - 1.0)) * t.reopening
        return 1.0 - (t.refresh_all + reopened) / t.refresh_interval
    each = np.where(t.refresh_interval_bank > 0, t.refresh_interval_bank, t.refresh_interval / t.all_banks)
    return 1.0 - t.pseudo * t.rp / each


def turnaround(t: Timings, reads: object) -> Array:
    """What turning the bus leaves, with a share `reads` of accesses reading: long runs of each lose little.

    D / (D + tRTW + tWTR), where D is the time of the reads and writes between two turns.
    """
    share = array(reads)
    run = WATERMARK * t.writes / np.maximum(1.0 - share, 1e-9) * t.burst_time / t.pseudo
    return np.where(share > 0.0, run / (run + t.read_to_write + t.write_to_read), 1.0)


def streaming(t: Timings, reads: object = 1.0, per_bank: bool = False) -> Array:
    """Share of the peak that a stream sustains: weights, or long runs of any data."""
    return refresh(t, per_bank) * turnaround(t, reads)


def lines_of_rows(t: Timings, lines: object = 1.0, per_bank: bool = False) -> Array:
    """Share sustained by reads of so many accesses from each row, rows rotating over all banks.

    One line a row is random access.
    """
    count = array(lines)
    bus = count * t.burst_time
    longest = np.maximum(np.maximum(bus, t.activation), t.rc / t.all_banks)
    return refresh(t, per_bank) * bus / longest


def pages(t: Timings, size: object, channels: object = 1.0, per_bank: bool = False) -> Array:
    """Share sustained by reads of scattered pages of `size` bytes, each striped over the bank groups.

    A page that is interleaved over several channels leaves each a part of it, of one access at the least.
    """
    count = np.maximum(np.ceil(array(size) / array(channels) / t.burst), 1.0)
    row = np.maximum(np.floor(t.row / t.burst), 1.0)
    striped = t.groups
    own = np.minimum(np.ceil(count / striped), row)  # lines of a page in one row
    changes = np.ceil(count / striped / row)  # rows of a page in one bank
    queue = np.where(t.pseudo > 1, SHARED_QUEUE * t.reads, t.reads)
    bus, opening = count * t.burst_time, np.ceil(count / own) * t.activation
    few = _norm(_norm(bus, opening, BLEND), _banks(t, count, own, queue), BLEND)
    many = _norm(bus, opening, BLEND) + changes * striped / t.all_banks * t.reopening * count / (count + queue)
    time = np.where(count <= queue, few, many)
    return refresh(t, per_bank) * bus / _norm(time, count * _group_pace(t) / striped, GROUP_BLEND)


def _group_pace(t: Timings) -> Array:
    """Seconds between accesses to one bank group; without groups there is no such limit."""
    return np.where(t.groups > 1, t.ccd_long, 0.0)


def _banks(t: Timings, count: Array, own: Array, queue: Array) -> Array:
    """Seconds a page keeps its banks, over the pages in the queue that find other banks free."""
    waiting = 1.0 + (queue - 1.0) / count
    sets = np.maximum(t.all_banks / t.groups, 1.0)
    busy = sets * (1.0 - (1.0 - 1.0 / sets) ** waiting)
    return np.maximum(t.rc, t.reopening + (own - 1.0) * t.groups * t.burst_time) / busy


def pages_in_one_bank(t: Timings, size: object, channels: object = 1.0, per_bank: bool = False) -> Array:
    """Share sustained where a page lies in one bank, a mapping to avoid: its accesses come at the pace of one group.

    Another page of the queue fills the gaps where it sits in another group.
    """
    count = np.maximum(np.ceil(array(size) / array(channels) / t.burst), 1.0)
    queue = np.where(t.pseudo > 1, SHARED_QUEUE * t.reads, t.reads)
    others = np.maximum(queue / count - 1.0, 0.0)
    slowed = 1.0 - t.burst_time / np.maximum(_group_pace(t), t.burst_time)
    pace = 1.0 - slowed * (1.0 / t.groups) ** others
    return np.minimum(refresh(t, per_bank) * pace, pages(t, size, channels, per_bank))


def _norm(x: Array, y: Array, p: float) -> Array:
    larger = np.maximum(np.maximum(x, y), np.finfo(np.float64).tiny)
    return np.asarray(larger * ((x / larger) ** p + (y / larger) ** p) ** (1.0 / p))
