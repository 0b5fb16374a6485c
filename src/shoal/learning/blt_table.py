"""Decays and weights of buffered noise, by the versions they are made for. Written by ``tools/blt_table.py``.

``error``: the root mean square of the noise in the running sums, where one participation has a ratio of 1.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    decays: tuple[float, ...]
    weights: tuple[float, ...]
    error: float


TABLE: dict[int, Row] = {
    128: Row(
        decays=(0.368267953876, 0.812592104092, 0.978487743406, 0.999999999999),
        weights=(0.133220216212, 0.190862094317, 0.180141227847, 1.2e-11),
        error=2.397898749,
    ),
    256: Row(
        decays=(0.495932120154, 0.891642835534, 0.989076550976, 0.999999999448),
        weights=(0.195677738535, 0.175187057604, 0.130948324281, 1.33e-10),
        error=2.617239531,
    ),
    512: Row(
        decays=(0.356982559078, 0.781209890028, 0.94923306327, 0.994563577849),
        weights=(0.12561989068, 0.167315073843, 0.116621329117, 0.092402256121),
        error=2.837093863,
    ),
    1_024: Row(
        decays=(0.663618473832, 0.959751048459, 0.997113465257, 0.997743402673),
        weights=(0.278552087586, 0.141882922324, 0.070319469989, 1.0789186e-05),
        error=3.058671114,
    ),
    2_048: Row(
        decays=(0.720452895921, 0.973910580573, 0.998423469129, 0.9999999987),
        weights=(0.302539992682, 0.126304692259, 0.052377688582, 0.000641033324),
        error=3.281288102,
    ),
    4_096: Row(
        decays=(0.763780933452, 0.982224361259, 0.999078074673, 1),
        weights=(0.317618661343, 0.112819581259, 0.039636509151, 0.00148563874),
        error=3.505680908,
    ),
    8_192: Row(
        decays=(0.801791094083, 0.987965422075, 0.999467631379, 0.999999889183),
        weights=(0.327310761904, 0.099760722802, 0.030076957969, 0.001662731834),
        error=3.732442820,
    ),
    16_384: Row(
        decays=(0.696465412037, 0.968068143759, 0.997122357476, 0.999815553625),
        weights=(0.29353225652, 0.132281063303, 0.041438342159, 0.018058087552),
        error=3.942610870,
    ),
}

#: Versions of one chain for which there is a row.
VERSIONS_MAX = max(TABLE)
