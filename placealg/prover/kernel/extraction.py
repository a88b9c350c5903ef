"""The verified checker, extracted from Coq: written by `make coq`, as `checker.py` says."""
# ruff: noqa
# mypy: ignore-errors
SOURCES = "cbf91146a6f42968736927b5061378803a3847d0116190dd6de6f50b1c69e245"
DIGEST = "27c9f171d5bea301176020803b50cb14da4ca51e18fd542f31846c9086559c6f"
def stuck(found):raise AssertionError(found)
def negb_(v0):return (False if v0 else True)
def option_map_(v1,v2):return (('Some',v1(v2[1]),) if v2[0]=='Some' else ('None',) if v2[0]=='None' else stuck(v2))
def fst_(v3):return (v3[1] if v3[0]=='Pair' else stuck(v3))
def snd_(v4):return (v4[2] if v4[0]=='Pair' else stuck(v4))
def app_(v5,v6):return (v6 if v5[0]=='Nil' else ('Cons',v5[1],app_(v5[2],v6),) if v5[0]=='Cons' else stuck(v5))
def add_(v7,v8):return ((add_((v7-1),v8)+1) if v7 else v8)
def eqb_(v,w):return v==w
def leb_(v,w):return v<=w
def ltb_(v9,v10):return leb_((v9+1),v10)
def eqb0_(v,w):return v==w
def tl_(v11):return (('Nil',) if v11[0]=='Nil' else v11[2] if v11[0]=='Cons' else stuck(v11))
def nth_(v12,v13,v14):
 while 1:
  if v12:
   if v13[0]=='Nil':
    return v14
   elif v13[0]=='Cons':
    v12,v13=(v12-1),v13[2]
   else:
    return stuck(v13)
  else:
   return (v14 if v13[0]=='Nil' else v13[1] if v13[0]=='Cons' else stuck(v13))
def map_(v15,v16):return (('Nil',) if v16[0]=='Nil' else ('Cons',v15(v16[1]),map_(v15,v16[2]),) if v16[0]=='Cons' else stuck(v16))
def flat_map_(v17,v18):return (('Nil',) if v18[0]=='Nil' else app_(v17(v18[1]),flat_map_(v17,v18[2])) if v18[0]=='Cons' else stuck(v18))
def fold_right_(v19,v20,v21):return (v20 if v21[0]=='Nil' else v19(v21[1])(fold_right_(v19,v20,v21[2])) if v21[0]=='Cons' else stuck(v21))
def existsb_(v22,v23):
 while 1:
  if v23[0]=='Nil':
   return False
  elif v23[0]=='Cons':
   v24=v22(v23[1])
   if v24:
    return True
   else:
    v23=v23[2]
  else:
   return stuck(v23)
def forallb_(v25,v26):
 while 1:
  if v26[0]=='Nil':
   return True
  elif v26[0]=='Cons':
   v27=v25(v26[1])
   if v27:
    v26=v26[2]
   else:
    return False
  else:
   return stuck(v26)
def find_(v28,v29):
 while 1:
  if v29[0]=='Nil':
   return ('None',)
  elif v29[0]=='Cons':
   v30=v28(v29[1])
   if v30:
    return ('Some',v29[1],)
   else:
    v29=v29[2]
  else:
   return stuck(v29)
def combine_(v31,v32):return (('Nil',) if v31[0]=='Nil' else (('Nil',) if v32[0]=='Nil' else ('Cons',('Pair',v31[1],v32[1],),combine_(v31[2],v32[2]),) if v32[0]=='Cons' else stuck(v32)) if v31[0]=='Cons' else stuck(v31))
def seq_(v33,v34):return (('Cons',v33,seq_((v33+1),(v34-1)),) if v34 else ('Nil',))
def repeat_(v35,v36):return (('Cons',v35,repeat_(v35,(v36-1)),) if v36 else ('Nil',))
def slot_eqb_(v37,v38):return ((eqb0_(v37[1],v38[1]) if v38[0]=='Shared' else False if v38[0]=='Each' else stuck(v38)) if v37[0]=='Shared' else (False if v38[0]=='Shared' else eqb0_(v37[1],v38[1]) if v38[0]=='Each' else stuck(v38)) if v37[0]=='Each' else stuck(v37))
def at_axis_(v39,v40):return option_map_(snd_,find_((lambda v42:eqb_(fst_(v42),v40)),v39))
def renamed_(v43,v44):return (snd_(v46[1]) if (v46:=find_((lambda v45:eqb_(fst_(v45),v44)),v43))[0]=='Some' else v44 if v46[0]=='None' else stuck(v46))
def meets_(v47,v48,v49):return existsb_((lambda v50:existsb_((lambda v51:lambda v52:eqb_(v51,v52))(v50),v49)),v47(v48))
def touches_(v53,v54):return nth_(v54,(v53[3] if v53[0]=='Mesh' else stuck(v53)),('Cons',v54,('Nil',),))
def kind_in_(v55,v56):return nth_(v56,v55,('Full',))
def next_of_(v57,v58):return option_map_(snd_,find_((lambda v60:eqb0_(fst_(v60),v58)),(v57[4] if v57[0]=='Program' else stuck(v57))))
def scoped_(v61):return (map_((lambda v62:('Pair',fst_(v62),('Pair',('None',),snd_(v62),),)),v61[1]) if v61[0]=='Plain' else map_((lambda v63:('Pair',fst_(v63),('Pair',('Some',v61[1],),snd_(v63),),)),v61[3]) if v61[0]=='Repeat' else stuck(v61))
def lines_(v64):return flat_map_(scoped_,(v64[3] if v64[0]=='Program' else stuck(v64)))
def plain_(v66,v67):return (False if (v68:=touches_(v66,v67))[0]=='Nil' else (eqb_(v68[1],v67) if (v69:=v68[2])[0]=='Nil' else False if v69[0]=='Cons' else stuck(v69)) if v68[0]=='Cons' else stuck(v68))
def still_(v70,v71):return forallb_((lambda v72:negb_((True if (v73:=eqb_((v72[3] if v72[0]=='Moves' else stuck(v72)),v71)) else eqb_((v72[4] if v72[0]=='Moves' else stuck(v72)),v71)))),(v70[5] if v70[0]=='Mesh' else stuck(v70)))
def likeness_(v74,v75):return nth_(v75,(v74[2] if v74[0]=='Mesh' else stuck(v74)),v75)
def get_(v76,v77):
 while 1:
  if v76[0]=='Leaf':
   return ('None',)
  elif v76[0]=='Node':
   if v77==1:
    return v76[2]
   elif v77&1:
    v76,v77=v76[3],(v77>>1)
   else:
    v76,v77=v76[1],(v77>>1)
  else:
   return stuck(v76)
def set_(v78,v79,v80):return ((v81:=('Pair',('Leaf',),('None',),),(v82:=('Leaf',),((('Node',v81[1],v79,v82,) if v78==1 else ('Node',v81[1],v81[2],set_((v78>>1),v79,v82),) if v78&1 else ('Node',set_((v78>>1),v79,v81[1]),v81[2],v82,)) if v81[0]=='Pair' else stuck(v81)))[1])[1] if v80[0]=='Leaf' else (v83:=('Pair',v80[1],v80[2],),((('Node',v83[1],v79,v80[3],) if v78==1 else ('Node',v83[1],v83[2],set_((v78>>1),v79,v80[3]),) if v78&1 else ('Node',set_((v78>>1),v79,v83[1]),v83[2],v80[3],)) if v83[0]=='Pair' else stuck(v83)))[1] if v80[0]=='Node' else stuck(v80))
def of_list_(v84):return fold_right_((lambda v85:lambda v86:set_(fst_(v85),('Some',snd_(v85),),v86)),('Leaf',),v84)
def along_(v87,v88):return (True if v88[0]=='Full' else eqb_(v88[1],v87) if v88[0]=='Shard' else False if v88[0]=='Part' else stuck(v88))
def is_full_(v89):return (True if v89[0]=='Full' else False)
def is_part_(v90):return (True if v90[0]=='Part' else False)
def one_part_(v91):
 while 1:
  if v91[0]=='Nil':
   return False
  elif v91[0]=='Cons':
   v92=v91[1]
   if v92[0]=='Full':
    v91=v91[2]
   elif v92[0]=='Shard':
    return False
   elif v92[0]=='Part':
    return forallb_(is_full_,v91[2])
   else:
    return stuck(v92)
  else:
   return stuck(v91)
def einsum_kind_(v94,v95,v96,v97):return ((('Some',(('Part',) if (v101:=meets_(v94,v96[1],v95)) else ('Shard',v96[1],)),) if (v100:=forallb_((lambda v98:lambda v99:along_(v98,v99))(v96[1]),v97)) else ('None',)) if v96[0]=='Some' else (('Some',('Full',),) if (v103:=forallb_(is_full_,v97)) else (('Some',('Part',),) if (v104:=one_part_(v97)) else ('None',))) if v96[0]=='None' else stuck(v96))
def row_kind_(v105,v106,v107,v108):return ((('Some',('Shard',v107[1],),) if (v112:=(forallb_((lambda v110:lambda v111:along_(v110,v111))(v107[1]),v108) if (v109:=negb_(meets_(v105,v107[1],v106))) else False)) else ('None',)) if v107[0]=='Some' else (('Some',('Full',),) if (v114:=forallb_(is_full_,v108)) else ('None',)) if v107[0]=='None' else stuck(v107))
def sent_kind_(v115,v116):return ((('Some',('Full',),) if v116[0]=='Part' else ('None',)) if v115[0]=='AllReduce' else (('Some',('Shard',v115[1],),) if v116[0]=='Part' else ('None',)) if v115[0]=='ReduceScatter' else (('Some',('Full',),) if v116[0]=='Full' else (('Some',('Full',),) if (v117:=eqb_(v115[1],v116[1])) else ('None',)) if v116[0]=='Shard' else ('None',) if v116[0]=='Part' else stuck(v116)) if v115[0]=='AllGather' else (('Some',('Shard',v115[1],),) if v116[0]=='Full' else (('Some',('Shard',v115[1],),) if (v118:=eqb_(v115[1],v116[1])) else ('None',)) if v116[0]=='Shard' else ('None',) if v116[0]=='Part' else stuck(v116)) if v115[0]=='Slice' else ((('Some',('Shard',v115[2],),) if (v119:=eqb_(v115[1],v116[1])) else ('None',)) if v116[0]=='Shard' else ('None',)) if v115[0]=='AllToAll' else (('Some',('Part',),) if v116[0]=='Full' else (('Some',('Part',),) if (v120:=eqb_(v115[1],v116[1])) else ('None',)) if v116[0]=='Shard' else ('None',) if v116[0]=='Part' else stuck(v116)) if v115[0]=='Only' else stuck(v115))
def mono_times_(v121,v122):return (v122 if v121[0]=='Nil' else ((v121 if v122[0]=='Nil' else (('Cons',('Pair',add_(v123[1],v124[1]),add_(v123[2],v124[2]),),mono_times_(v121[2],v122[2]),) if (v124:=v122[1])[0]=='Pair' else stuck(v124)) if v122[0]=='Cons' else stuck(v122)) if (v123:=v121[1])[0]=='Pair' else stuck(v123)) if v121[0]=='Cons' else stuck(v121))
def mono_over_(v125,v126):return mono_times_(v125,map_((lambda v127:('Pair',snd_(v127),fst_(v127),)),v126))
def cancels_(v128):
 while 1:
  if v128[0]=='Nil':
   return True
  elif v128[0]=='Cons':
   v129=v128[1]
   if v129[0]=='Pair':
    v130=eqb_(v129[1],v129[2])
    if v130:
     v128=v128[2]
    else:
     return False
   else:
    return stuck(v129)
  else:
   return stuck(v128)
def mono_same_(v131,v132):return cancels_(mono_over_(v131,v132))
def is_one_(v133,v134):return (True if (v135:=cancels_(v134)) else existsb_((lambda v136:(True if (v137:=mono_same_(v134,v136)) else cancels_(mono_times_(v134,v136)))),v133))
def reduced_(v138,v139):return (('Nil',) if (v140:=is_one_(v138,v139)) else v139)
def kind_at_(v141,v142):return nth_(v142,(v141[1] if v141[0]=='Fact' else stuck(v141)),('Full',))
def sequence_(v143):return (('Some',('Nil',),) if v143[0]=='Nil' else ((('Some',('Cons',v144[1],v145[1],),) if (v145:=sequence_(v143[2]))[0]=='Some' else ('None',) if v145[0]=='None' else stuck(v145)) if (v144:=v143[1])[0]=='Some' else ('None',) if v144[0]=='None' else stuck(v144)) if v143[0]=='Cons' else stuck(v143))
def add_kind_(v146,v147):return ((('Some',('Shard',v146[1],),) if (v150:=forallb_((lambda v148:lambda v149:along_(v148,v149))(v146[1]),v147)) else ('None',)) if v146[0]=='Some' else (('Some',('Full',),) if (v152:=forallb_(is_full_,v147)) else (('Some',('Part',),) if (v154:=forallb_(is_part_,v147)) else ('None',))) if v146[0]=='None' else stuck(v146))
def atom_of_(v155):return app_(repeat_(('Pair',0,0,),v155),('Cons',('Pair',(0+1),0,),('Nil',),))
def per_axis_(v156,v157):return sequence_(map_(v157,seq_(0,(v156[1] if v156[0]=='Mesh' else stuck(v156)))))
def rename_kind_(v158,v159,v160):return ((('Some',('Shard',v160[1],),) if (v162:=forallb_((lambda v161:eqb_(renamed_(v159,v161),v161)),touches_(v158,v160[1]))) else (('Some',('Shard',renamed_(v159,v160[1]),),) if (v165:=(plain_(v158,renamed_(v159,v160[1])) if (v164:=(plain_(v158,v160[1]) if (v163:=eqb_(likeness_(v158,renamed_(v159,v160[1])),likeness_(v158,v160[1]))) else False)) else False)) else ('None',))) if v160[0]=='Shard' else ('Some',v160,))
def with_factor_(v166,v167):return (('Some',('Fact',v167[1],v166,),) if v167[0]=='Some' else ('None',) if v167[0]=='None' else stuck(v167))
def infer_(v168,v169,v170,v171):return (with_factor_(fold_right_((lambda v172:lambda v173:mono_times_((v172[2] if v172[0]=='Fact' else stuck(v172)),v173)),('Nil',),v171),per_axis_(v168,(lambda v174:einsum_kind_((lambda v175:lambda v176:touches_(v175,v176))(v168),v170[2],at_axis_(v170[1],v174),map_((lambda v177:kind_at_(v177,v174)),v171))))) if v170[0]=='Einsum' else (with_factor_(('Nil',),per_axis_(v168,(lambda v180:row_kind_((lambda v181:lambda v182:touches_(v181,v182))(v168),v170[2],at_axis_(v170[3],v180),map_((lambda v183:kind_at_(v183,v180)),v171))))) if (v179:=forallb_((lambda v178:is_one_(v169,(v178[2] if v178[0]=='Fact' else stuck(v178)))),v171)) else ('None',)) if v170[0]=='Row' else (('None',) if v171[0]=='Nil' else (with_factor_((v187[2] if (v187:=v171[1])[0]=='Fact' else stuck(v187)),per_axis_(v168,(lambda v188:add_kind_(at_axis_(v170[1],v188),map_((lambda v189:kind_at_(v189,v188)),v171))))) if (v186:=forallb_((lambda v184:mono_same_((v184[2] if v184[0]=='Fact' else stuck(v184)),(v185[2] if (v185:=v171[1])[0]=='Fact' else stuck(v185)))),v171)) else ('None',)) if v171[0]=='Cons' else stuck(v171)) if v170[0]=='Add' else (('None',) if v171[0]=='Nil' else (('Some',('Fact',(v191[1] if (v191:=v171[1])[0]=='Fact' else stuck(v191)),reduced_(v169,mono_times_(v170[1],(v192[2] if (v192:=v171[1])[0]=='Fact' else stuck(v192)))),),) if (v190:=v171[2])[0]=='Nil' else ('None',) if v190[0]=='Cons' else stuck(v190)) if v171[0]=='Cons' else stuck(v171)) if v170[0]=='Scale' else (('None',) if v171[0]=='Nil' else (with_factor_((v194[2] if (v194:=v171[1])[0]=='Fact' else stuck(v194)),per_axis_(v168,(lambda v195:rename_kind_(v168,v170[1],kind_at_(v171[1],v195))))) if (v193:=v171[2])[0]=='Nil' else ('None',) if v193[0]=='Cons' else stuck(v193)) if v171[0]=='Cons' else stuck(v171)) if v170[0]=='Rename' else (('None',) if v171[0]=='Nil' else (((((('Some',('Fact',(v203[1] if (v203:=v171[1])[0]=='Fact' else stuck(v203)),reduced_(v169,mono_times_(atom_of_(snd_(v202[1])),(v204[2] if (v204:=v171[1])[0]=='Fact' else stuck(v204)))),),) if (v202:=find_((lambda v201:eqb_(fst_(v201),v170[1])),(v168[4] if v168[0]=='Mesh' else stuck(v168))))[0]=='Some' else with_factor_((v205[2] if (v205:=v171[1])[0]=='Fact' else stuck(v205)),per_axis_(v168,(lambda v206:(sent_kind_(v170[2],kind_at_(v171[1],v170[1])) if (v207:=eqb_(v206,v170[1])) else ('Some',kind_at_(v171[1],v206),))))) if v202[0]=='None' else stuck(v202)) if (v200:=kind_at_(v171[1],v170[1]))[0]=='Full' else with_factor_((v208[2] if (v208:=v171[1])[0]=='Fact' else stuck(v208)),per_axis_(v168,(lambda v209:(sent_kind_(v170[2],kind_at_(v171[1],v170[1])) if (v210:=eqb_(v209,v170[1])) else ('Some',kind_at_(v171[1],v209),)))))) if (v199:=v170[2])[0]=='AllReduce' else with_factor_((v211[2] if (v211:=v171[1])[0]=='Fact' else stuck(v211)),per_axis_(v168,(lambda v212:(sent_kind_(v170[2],kind_at_(v171[1],v170[1])) if (v213:=eqb_(v212,v170[1])) else ('Some',kind_at_(v171[1],v212),)))))) if (v198:=(negb_(eqb_(v170[1],0)) if (v197:=ltb_(v170[1],(v168[1] if v168[0]=='Mesh' else stuck(v168)))) else False)) else ('None',)) if (v196:=v171[2])[0]=='Nil' else ('None',) if v196[0]=='Cons' else stuck(v196)) if v171[0]=='Cons' else stuck(v171)) if v170[0]=='Send' else stuck(v170))
def same_list_(v214,v215,v216):
 while 1:
  if v215[0]=='Nil':
   return (True if v216[0]=='Nil' else False if v216[0]=='Cons' else stuck(v216))
  elif v215[0]=='Cons':
   if v216[0]=='Nil':
    return False
   elif v216[0]=='Cons':
    v217=v214(v215[1])(v216[1])
    if v217:
     v215,v216=v215[2],v216[2]
    else:
     return False
   else:
    return stuck(v216)
  else:
   return stuck(v215)
def same_pair_(v218,v219):return (eqb_(snd_(v218),snd_(v219)) if (v220:=eqb_(fst_(v218),fst_(v219))) else False)
def is_line_(v221,v222):return (((('Some',('Nil',),) if (v225:=same_list_((lambda v223:lambda v224:eqb_(v223,v224)),v221[2],v222[1])) else ('None',)) if v222[0]=='SEinsum' else ('None',)) if v221[0]=='Einsum' else ((('Some',('Nil',),) if (v229:=(same_list_((lambda v227:lambda v228:eqb_(v227,v228)),v221[2],v222[2]) if (v226:=eqb_(v221[1],v222[1])) else False)) else ('None',)) if v222[0]=='SRow' else ('None',)) if v221[0]=='Row' else (('Some',('Nil',),) if v222[0]=='SAdd' else ('None',)) if v221[0]=='Add' else (('Some',v222[1],) if v222[0]=='SScale' else ('None',)) if v221[0]=='Scale' else ((('Some',('Nil',),) if (v232:=same_list_((lambda v230:lambda v231:same_pair_(v230,v231)),v221[1],v222[1])) else ('None',)) if v222[0]=='SRename' else ('None',)) if v221[0]=='Rename' else ('None',) if v221[0]=='Send' else stuck(v221))
def keeps_(v233):return (True if v233[0] in('Scale','Send') else False)
def all_still_(v234,v235):return forallb_((lambda v236:(still_(v234,v236[1]) if v236[0]=='Shard' else True)),v235)
def move_kind_(v237,v238,v239):return ((('Shard',v238,) if (v240:=eqb_(v239[1],v237)) else v239) if v239[0]=='Shard' else v239)
def moved_(v241,v242,v243,v244,v245):return (('Fact',map_((lambda v248:lambda v249:lambda v250:move_kind_(v248,v249,v250))(v243(v247[1]))(v244(v247[1])),(v245[1] if v245[0]=='Fact' else stuck(v245))),(v245[2] if v245[0]=='Fact' else stuck(v245)),) if (v247:=find_((lambda v246:eqb_((v246[1] if v246[0]=='Moves' else stuck(v246)),v242)),(v241[5] if v241[0]=='Mesh' else stuck(v241))))[0]=='Some' else v245 if v247[0]=='None' else stuck(v247))
def ix_eqb_(v251,v252):return ((True if v252[0]=='First' else False) if v251[0]=='First' else (True if v252[0]=='This' else False) if v251[0]=='This' else (True if v252[0]=='Next' else False) if v251[0]=='Next' else (eqb_(v251[1],v252[1]) if v252[0]=='Last' else False) if v251[0]=='Last' else stuck(v251))
def named_eqb_(v253,v254):return (ix_eqb_(snd_(v253),snd_(v254)) if (v255:=eqb0_(fst_(v253),fst_(v254))) else False)
def unit_eqb_(v256,v257):return ((eqb_(v256[1],v257[1]) if v257[0]=='Some' else False if v257[0]=='None' else stuck(v257)) if v256[0]=='Some' else (False if v257[0]=='Some' else True if v257[0]=='None' else stuck(v257)) if v256[0]=='None' else stuck(v256))
def find_slot_(v258,v259):return (get_((v258[1] if v258[0]=='Known' else stuck(v258)),v259[1]) if v259[0]=='Shared' else get_((v258[2] if v258[0]=='Known' else stuck(v258)),v259[1]) if v259[0]=='Each' else stuck(v259))
def put_slot_(v260,v261,v262):return (('Known',set_(v260[1],v261,(v262[1] if v262[0]=='Known' else stuck(v262))),(v262[2] if v262[0]=='Known' else stuck(v262)),) if v260[0]=='Shared' else ('Known',(v262[1] if v262[0]=='Known' else stuck(v262)),set_(v260[1],v261,(v262[2] if v262[0]=='Known' else stuck(v262))),) if v260[0]=='Each' else stuck(v260))
def forget_(v263,v264):return fold_right_((lambda v265:lambda v266:put_slot_(v265,('None',),v266)),v264,v263)
nothing_=('Known',('Leaf',),('Leaf',),)
def out_of_(v267):return (v267[3] if v267[0]=='Do' else v267[2] if v267[0]=='Read' else v267[1] if v267[0] in('Zero','Free') else stuck(v267))
def written_(v268):return (map_(out_of_,v268[1]) if v268[0]=='Run' else map_(out_of_,v268[4]) if v268[0]=='Layers' else stuck(v268))
def scope_of_(v271,v272):return (('Some',('None',),) if v272[0]=='Shared' else (('Some',('Some',v271[1],),) if v271[0]=='Some' else ('None',) if v271[0]=='None' else stuck(v271)) if v272[0]=='Each' else stuck(v272))
def arg_(v273,v274,v275):return ((((v280[2] if (v280:=v276[1])[0]=='Item' else stuck(v280)) if (v279:=unit_eqb_((v278[1] if (v278:=v276[1])[0]=='Item' else stuck(v278)),v277[1])) else ('None',)) if (v277:=scope_of_(v273,v275))[0]=='Some' else ('None',) if v277[0]=='None' else stuck(v277)) if (v276:=find_slot_(v274,v275))[0]=='Some' else ('None',) if v276[0]=='None' else stuck(v276))
def fixed_ix_(v281):return (True if (v282:=snd_(v281))[0] in('First','Last') else False)
def fits_(v283,v284,v285,v286,v287):return ((True if v284[0]=='Some' else (all_still_(v283,(v286[1] if v286[0]=='Fact' else stuck(v286))) if (v289:=fixed_ix_(v287)) else False) if v284[0]=='None' else stuck(v284)) if (v288:=(True if v285 else is_full_(kind_at_(v286,0)))) else False)
def write_(v290,v291,v292,v293):return (('Some',put_slot_(v291,('Some',('Item',v294[1],v292,),),v293),) if (v294:=scope_of_(v290,v291))[0]=='Some' else ('None',) if v294[0]=='None' else stuck(v294))
def claimed_(v295,v296,v297,v298,v299,v300,v301):return (((((('Some',('Pair',('Fact',(v301[1] if v301[0]=='Fact' else stuck(v301)),reduced_(v295,mono_over_((v301[2] if v301[0]=='Fact' else stuck(v301)),v305[1])),),(v311[1] if (v311:=v303[2])[0]=='Line' else stuck(v311)),),) if (v310:=(same_list_((lambda v307:lambda v308:named_eqb_(v307,v308)),v300,(v309[3] if (v309:=v303[2])[0]=='Line' else stuck(v309))) if (v306:=unit_eqb_(v303[1],v297)) else False)) else ('None',)) if (v305:=is_line_(v298,(v304[2] if (v304:=v303[2])[0]=='Line' else stuck(v304))))[0]=='Some' else ('None',) if v305[0]=='None' else stuck(v305)) if (v303:=v302[1])[0]=='Pair' else stuck(v303)) if (v302:=get_(v296,v299[1]))[0]=='Some' else ('None',) if v302[0]=='None' else stuck(v302)) if v299[0]=='Some' else (('None',) if v300[0]=='Nil' else ((('Some',('Pair',v301,v300[1],),) if (v313:=keeps_(v298)) else ('None',)) if (v312:=v300[2])[0]=='Nil' else ('None',) if v312[0]=='Cons' else stuck(v312)) if v300[0]=='Cons' else stuck(v300)) if v299[0]=='None' else stuck(v299))
def check_instr_(v314,v315,v316,v317,v318,v319,v320,v321):return ((((((write_(v318,v320[3],('Some',('Pair',v330[1],v330[2],),),v321) if (v331:=fits_(v314,v318,v319,v330[1],v330[2])) else ('None',)) if (v330:=v329[1])[0]=='Pair' else stuck(v330)) if (v329:=claimed_(v315,v316,v318,v320[1],v320[4],map_(snd_,v325[1]),v327[1]))[0]=='Some' else ('None',) if v329[0]=='None' else stuck(v329)) if (v327:=infer_(v314,v315,v320[1],map_(fst_,v325[1])))[0]=='Some' else ('None',) if v327[0]=='None' else stuck(v327)) if (v325:=sequence_(map_((lambda v322:lambda v323:lambda v324:arg_(v322,v323,v324))(v318)(v321),v320[2])))[0]=='Some' else ('None',) if v325[0]=='None' else stuck(v325)) if v320[0]=='Do' else ((v335:=('Pair',v320[1],(('This',) if v318[0]=='Some' else ('First',) if v318[0]=='None' else stuck(v318)),),(write_(v318,v320[2],('Some',('Pair',('Fact',(v338[3] if (v338:=v334[1])[0]=='Held' else stuck(v338)),('Nil',),),v335,),),v321) if (v337:=fits_(v314,v318,v319,('Fact',(v336[3] if (v336:=v334[1])[0]=='Held' else stuck(v336)),('Nil',),),v335)) else ('None',)))[1] if (v334:=find_((lambda v332:(unit_eqb_((v332[2] if v332[0]=='Held' else stuck(v332)),v318) if (v333:=eqb0_((v332[1] if v332[0]=='Held' else stuck(v332)),v320[1])) else False)),v317))[0]=='Some' else ('None',) if v334[0]=='None' else stuck(v334)) if v320[0]=='Read' else write_(v318,v320[1],('None',),v321) if v320[0]=='Zero' else ('Some',put_slot_(v320[1],('None',),v321),) if v320[0]=='Free' else stuck(v320))
def check_instrs_(v339,v340,v341,v342,v343,v344,v345,v346):
 while 1:
  if v345[0]=='Nil':
   return ('Some',v346,)
  elif v345[0]=='Cons':
   v347=check_instr_(v339,v340,v341,v342,v343,v344,v345[1],v346)
   if v347[0]=='Some':
    v345,v346=v345[2],v347[1]
   elif v347[0]=='None':
    return ('None',)
   else:
    return stuck(v347)
  else:
   return stuck(v345)
def kind_eqb_(v348,v349):return ((True if v349[0]=='Full' else False) if v348[0]=='Full' else (eqb_(v348[1],v349[1]) if v349[0]=='Shard' else False) if v348[0]=='Shard' else (True if v349[0]=='Part' else False) if v348[0]=='Part' else stuck(v348))
def same_fact_(v350,v351,v352):return (mono_same_((v351[2] if v351[0]=='Fact' else stuck(v351)),(v352[2] if v352[0]=='Fact' else stuck(v352))) if (v354:=forallb_((lambda v353:kind_eqb_(kind_at_(v351,v353),kind_at_(v352,v353))),seq_(0,(v350[1] if v350[0]=='Mesh' else stuck(v350))))) else False)
def carried_from_(v355,v356,v357):return (((('None',) if (v360:=v359[1])[0]=='Some' else (((('Some',('Pair',fst_(v357),v362[1],),) if (v363:=named_eqb_(v362[2],('Pair',snd_(v357),v356,))) else ('None',)) if (v362:=v361[1])[0]=='Pair' else stuck(v362)) if (v361:=v359[2])[0]=='Some' else ('None',) if v361[0]=='None' else stuck(v361)) if v360[0]=='None' else stuck(v360)) if (v359:=v358[1])[0]=='Item' else stuck(v359)) if (v358:=get_((v355[1] if v355[0]=='Known' else stuck(v355)),fst_(v357)))[0]=='Some' else ('None',) if v358[0]=='None' else stuck(v358))
def carried_to_(v364,v365,v366,v367,v368):return (((False if (v371:=v370[1])[0]=='Some' else (((same_fact_(v364,v373[1],snd_(v368)) if (v374:=named_eqb_(v373[2],('Pair',snd_(v367),v366,))) else False) if (v373:=v372[1])[0]=='Pair' else stuck(v373)) if (v372:=v370[2])[0]=='Some' else False if v372[0]=='None' else stuck(v372)) if v371[0]=='None' else stuck(v371)) if (v370:=v369[1])[0]=='Item' else stuck(v370)) if (v369:=get_((v365[1] if v365[0]=='Known' else stuck(v365)),fst_(v367)))[0]=='Some' else False if v369[0]=='None' else stuck(v369))
def put_carried_(v375,v376,v377):return fold_right_((lambda v378:lambda v379:set_(fst_(fst_(v378)),('Some',('Item',('None',),('Some',('Pair',snd_(snd_(v378)),('Pair',snd_(fst_(v378)),v375,),),),),),v379)),v377,v376)
def shared_of_(v380):return flat_map_((lambda v381:(('Cons',v381[1],('Nil',),) if v381[0]=='Shared' else ('Nil',) if v381[0]=='Each' else stuck(v381))),v380)
def forget_shared_(v382,v383):return fold_right_((lambda v384:lambda v385:set_(v384,('None',),v385)),v383,shared_of_(v382))
def each_carried_(v386,v387):return map_((lambda v388:('Pair',fst_(v388),('Pair',fst_(snd_(v388)),v386(snd_(snd_(v388))),),)),v387)
def distinct_(v389):
 while 1:
  if v389[0]=='Nil':
   return True
  elif v389[0]=='Cons':
   v392=negb_(existsb_((lambda v390:lambda v391:eqb0_(v390,v391))(v389[1]),v389[2]))
   if v392:
    v389=v389[2]
   else:
    return False
  else:
   return stuck(v389)
def check_block_(v393,v394,v395,v396,v397,v398,v399):return (check_instrs_(v393,v394,v395,v396,('None',),v397,v398[1],v399) if v398[0]=='Run' else (v400:=(('Next',) if (v401:=v398[2]) else ('This',)),(v402:=(('This',) if (v403:=v398[2]) else ('Next',)),(v404:=(('Last',v398[1],) if (v405:=v398[2]) else ('First',)),(v406:=(('First',) if (v407:=v398[2]) else ('Last',v398[1],)),(v408:=(lambda v409:((v409[5] if v409[0]=='Moves' else stuck(v409)) if (v410:=v398[2]) else (v409[2] if v409[0]=='Moves' else stuck(v409)))),(v411:=(lambda v414:lambda v415:lambda v416:lambda v417:lambda v418:moved_(v414,v415,v416,v417,v418))(v393)(v398[1])(v408)((lambda v412:((v412[4] if v412[0]=='Moves' else stuck(v412)) if (v413:=v398[2]) else (v412[3] if v412[0]=='Moves' else stuck(v412))))),(v419:=(lambda v422:lambda v423:lambda v424:lambda v425:lambda v426:moved_(v422,v423,v424,v425,v426))(v393)(v398[1])(v408)((lambda v420:((v420[3] if v420[0]=='Moves' else stuck(v420)) if (v421:=v398[2]) else (v420[4] if v420[0]=='Moves' else stuck(v420))))),(v427:=(lambda v430:lambda v431:lambda v432:lambda v433:lambda v434:moved_(v430,v431,v432,v433,v434))(v393)(v398[1])(v408)((lambda v428:((v428[2] if v428[0]=='Moves' else stuck(v428)) if (v429:=v398[2]) else (v428[5] if v428[0]=='Moves' else stuck(v428))))),((v439:=forget_shared_(map_(out_of_,v398[4]),(v399[1] if v399[0]=='Known' else stuck(v399))),(v441:=combine_(v398[3],v438[1]),((('Some',('Known',put_carried_(v406,each_carried_(v427,v441),v439),(v455[2] if (v455:=v442[1])[0]=='Known' else stuck(v455)),),) if (v454:=(forallb_((lambda v452:all_still_(v393,(v453[1] if (v453:=snd_(snd_(v452)))[0]=='Fact' else stuck(v453)))),each_carried_(v427,v441)) if (v451:=(forallb_((lambda v447:existsb_((lambda v448:lambda v449:eqb0_(v448,v449))(fst_(v447)),shared_of_(map_(out_of_,v398[4])))),v398[3]) if (v446:=(distinct_(map_(fst_,v398[3])) if (v444:=forallb_((lambda v443:carried_to_(v393,v442[1],v402,fst_(v443),snd_(v443))),each_carried_(v419,v441))) else False)) else False)) else False)) else ('None',)) if (v442:=check_instrs_(v393,v394,v395,v396,('Some',v398[1],),v397,v398[4],('Known',put_carried_(v400,each_carried_(v411,v441),v439),(v399[2] if v399[0]=='Known' else stuck(v399)),)))[0]=='Some' else ('None',) if v442[0]=='None' else stuck(v442)))[1])[1] if (v438:=sequence_(map_((lambda v435:lambda v436:lambda v437:carried_from_(v435,v436,v437))(v399)(v404),v398[3])))[0]=='Some' else ('None',) if v438[0]=='None' else stuck(v438)))[1])[1])[1])[1])[1])[1])[1])[1] if v398[0]=='Layers' else stuck(v398))
def check_blocks_(v456,v457,v458,v459,v460,v461,v462):
 while 1:
  if v461[0]=='Nil':
   return ('Some',v462,)
  elif v461[0]=='Cons':
   v463=check_block_(v456,v457,v458,v459,v460,v461[1],v462)
   if v463[0]=='Some':
    v461,v462=v461[2],v463[1]
   elif v463[0]=='None':
    return ('None',)
   else:
    return stuck(v463)
  else:
   return stuck(v461)
def full_at_0_(v464):return ('Fact',('Cons',('Full',),tl_((v464[1] if v464[0]=='Fact' else stuck(v464))),),(v464[2] if v464[0]=='Fact' else stuck(v464)),)
def summed_up_(v465,v466,v467,v468):return (((('None',) if (v471:=v470[2])[0]=='Some' else (((((('Some',('Pair',snd_(v468),('Item',v470[1],('Some',('Pair',full_at_0_(v475[1]),v475[2],),),),),) if (v481:=(negb_(eqb_((v465[1] if v465[0]=='Mesh' else stuck(v465)),0)) if (v480:=(((is_part_(kind_at_(v475[1],0)) if (v478:=fst_(v468))[0]=='Shared' else False if v478[0]=='Each' else stuck(v478)) if (v477:=snd_(v468))[0]=='Shared' else (False if (v479:=fst_(v468))[0]=='Shared' else is_part_(kind_at_(v475[1],0)) if v479[0]=='Each' else stuck(v479)) if v477[0]=='Each' else stuck(v477)) if (v476:=unit_eqb_(v470[1],v473[1])) else False)) else False)) else ('None',)) if (v475:=v474[1])[0]=='Pair' else stuck(v475)) if (v474:=v473[2])[0]=='Some' else ('None',) if v474[0]=='None' else stuck(v474)) if (v473:=v472[1])[0]=='Item' else stuck(v473)) if (v472:=find_slot_(v467,fst_(v468)))[0]=='Some' else ('None',) if v472[0]=='None' else stuck(v472)) if v471[0]=='None' else stuck(v471)) if (v470:=v469[1])[0]=='Item' else stuck(v470)) if (v469:=find_slot_(v466,snd_(v468)))[0]=='Some' else ('None',) if v469[0]=='None' else stuck(v469))
def apart_(v482):
 while 1:
  if v482[0]=='Nil':
   return True
  elif v482[0]=='Cons':
   v485=negb_(existsb_((lambda v483:lambda v484:slot_eqb_(v483,v484))(v482[1]),v482[2]))
   if v485:
    v482=v482[2]
   else:
    return False
  else:
   return stuck(v482)
def check_part_(v486,v487,v488,v489,v490,v491):return (check_blocks_(v486,v487,v488,v489,False,v490[1],v491) if v490[0]=='Once' else (v492:=flat_map_(written_,v490[2]),(v494:=forget_(app_(map_(snd_,v490[1]),v492),v491),(((('Some',fold_right_((lambda v509:lambda v510:put_slot_(fst_(v509),('Some',snd_(v509),),v510)),v494,v501[1]),) if (v508:=(apart_(map_(snd_,v490[1])) if (v506:=forallb_((lambda v502:negb_(existsb_((lambda v503:lambda v504:slot_eqb_(v503,v504))(v502),v492))),map_(snd_,v490[1]))) else False)) else ('None',)) if (v501:=sequence_(map_((lambda v497:lambda v498:lambda v499:lambda v500:summed_up_(v497,v498,v499,v500))(v486)(v491)(v496[1]),v490[1])))[0]=='Some' else ('None',) if v501[0]=='None' else stuck(v501)) if (v496:=check_blocks_(v486,v487,v488,v489,True,v490[2],v494))[0]=='Some' else ('None',) if v496[0]=='None' else stuck(v496)))[1])[1] if v490[0]=='Microbatches' else stuck(v490))
def check_parts_(v511,v512,v513,v514,v515,v516):
 while 1:
  if v515[0]=='Nil':
   return ('Some',v516,)
  elif v515[0]=='Cons':
   v517=check_part_(v511,v512,v513,v514,v515[1],v516)
   if v517[0]=='Some':
    v515,v516=v515[2],v517[1]
   elif v517[0]=='None':
    return ('None',)
   else:
    return stuck(v517)
  else:
   return stuck(v515)
def ix_of_(v518):return (('This',) if v518[0]=='Some' else ('First',) if v518[0]=='None' else stuck(v518))
def resting_(v519):return fold_right_((lambda v520:lambda v521:put_slot_(fst_(v520),('Some',('Item',(v522[2] if (v522:=snd_(v520))[0]=='Held' else stuck(v522)),('Some',('Pair',('Fact',(v523[3] if (v523:=snd_(v520))[0]=='Held' else stuck(v523)),('Nil',),),('Pair',(v524[1] if (v524:=snd_(v520))[0]=='Held' else stuck(v524)),ix_of_((v525[2] if (v525:=snd_(v520))[0]=='Held' else stuck(v525))),),),),),),v521)),nothing_,v519)
def rests_(v526,v527,v528,v529,v530):return ((((((is_one_(v527,(v543[2] if (v543:=v534[1])[0]=='Fact' else stuck(v543))) if (v542:=(forallb_((lambda v540:kind_eqb_(kind_at_(v534[1],v540),kind_in_((v541[3] if (v541:=snd_(v530))[0]=='Held' else stuck(v541)),v540))),seq_(0,(v526[1] if v526[0]=='Mesh' else stuck(v526)))) if (v539:=(named_eqb_(v534[2],('Pair',v536[1],ix_of_(v532[1]),)) if (v538:=unit_eqb_(v532[1],(v537[2] if (v537:=snd_(v530))[0]=='Held' else stuck(v537)))) else False)) else False)) else False) if (v536:=v528((v535[1] if (v535:=snd_(v530))[0]=='Held' else stuck(v535))))[0]=='Some' else False if v536[0]=='None' else stuck(v536)) if (v534:=v533[1])[0]=='Pair' else stuck(v534)) if (v533:=v532[2])[0]=='Some' else False if v533[0]=='None' else stuck(v533)) if (v532:=v531[1])[0]=='Item' else stuck(v532)) if (v531:=find_slot_(v529,fst_(v530)))[0]=='Some' else False if v531[0]=='None' else stuck(v531))
def well_kept_(v544,v545):return ((False if (v548:=(v547[2] if (v547:=snd_(v545))[0]=='Held' else stuck(v547)))[0]=='Some' else (all_still_(v544,(v551[3] if (v551:=snd_(v545))[0]=='Held' else stuck(v551))) if (v550:=is_full_(kind_in_((v549[3] if (v549:=snd_(v545))[0]=='Held' else stuck(v549)),0))) else False) if v548[0]=='None' else stuck(v548)) if (v546:=fst_(v545))[0]=='Shared' else (is_full_(kind_in_((v554[3] if (v554:=snd_(v545))[0]=='Held' else stuck(v554)),0)) if (v553:=(v552[2] if (v552:=snd_(v545))[0]=='Held' else stuck(v552)))[0]=='Some' else False if v553[0]=='None' else stuck(v553)) if v546[0]=='Each' else stuck(v546))
def keep_disk_(v555,v556):return fold_right_((lambda v557:lambda v558:put_slot_(v557,find_slot_(v556,v557),v558)),nothing_,v555)
def beside_(v559,v560):return (((((eqb_(v563[1],v565[1]) if (v565:=snd_(v559))[0]=='Last' else False) if (v564:=v563[2])[0]=='This' else (True if (v566:=snd_(v559))[0]=='First' else False) if v564[0]=='Next' else False) if (v563:=v562[1])[0]=='Pair' else stuck(v563)) if (v562:=v561[1])[0]=='Some' else False if v562[0]=='None' else stuck(v562)) if (v561:=get_(v560,fst_(v559)))[0]=='Some' else (True if (v567:=snd_(v559))[0] in('First','Last') else False) if v561[0]=='None' else stuck(v561))
def unread_(v568,v569):return (False if (v570:=get_(v568,fst_(v569)))[0]=='Some' else True if v570[0]=='None' else stuck(v570))
def plain_ordered_(v571,v572):return (('Some',v572,) if v571[0]=='Nil' else ((v574:=(v575[1] if (v575:=snd_(v571[1]))[0]=='Line' else stuck(v575)),(('Some',set_(fst_(v574),('Some',('None',),),v573[1]),) if (v580:=(forallb_((lambda v577:(negb_(eqb0_(fst_(v577),fst_(v574))) if (v578:=unread_(v573[1],v577)) else False)),(v579[3] if (v579:=snd_(v571[1]))[0]=='Line' else stuck(v579))) if (v576:=beside_(v574,v573[1])) else False)) else ('None',)))[1] if (v573:=plain_ordered_(v571[2],v572))[0]=='Some' else ('None',) if v573[0]=='None' else stuck(v573)) if v571[0]=='Cons' else stuck(v571))
def fresh_(v581,v582):return (False if (v583:=get_(v581,v582))[0]=='Some' else True if v583[0]=='None' else stuck(v583))
def loop_targets_(v584,v585,v586):return (('Some',v586,) if v585[0]=='Nil' else (((('Some',set_(fst_((v592[1] if (v592:=snd_(v585[1]))[0]=='Line' else stuck(v592))),('Some',('This',),),v587[1]),) if (v591:=fresh_(v587[1],fst_((v590[1] if (v590:=snd_(v585[1]))[0]=='Line' else stuck(v590))))) else ('None',)) if (v589:=snd_((v588[1] if (v588:=snd_(v585[1]))[0]=='Line' else stuck(v588))))[0]=='This' else (('Some',set_(fst_((v596[1] if (v596:=snd_(v585[1]))[0]=='Line' else stuck(v596))),('Some',('Next',),),v587[1]),) if (v595:=(negb_(v584) if (v594:=fresh_(v587[1],fst_((v593[1] if (v593:=snd_(v585[1]))[0]=='Line' else stuck(v593))))) else False)) else ('None',)) if v589[0]=='Next' else ('None',)) if (v587:=loop_targets_(v584,v585[2],v586))[0]=='Some' else ('None',) if v587[0]=='None' else stuck(v587)) if v585[0]=='Cons' else stuck(v585))
def loop_reads_(v597,v598,v599):return (('Some',('Leaf',),) if v599[0]=='Nil' else ((v601:=set_(fst_((v602[1] if (v602:=snd_(v599[1]))[0]=='Line' else stuck(v602))),('Some',('Tt',),),v600[1]),(('Some',v601,) if (v609:=forallb_((lambda v603:(((fresh_(v601,fst_(v603)) if (v606:=snd_(v603))[0]=='This' else v597 if v606[0]=='Next' else False) if (v605:=v604[1])[0]=='This' else (negb_(v597) if (v607:=snd_(v603))[0]=='This' else False) if v605[0]=='Next' else False) if (v604:=get_(v598,fst_(v603)))[0]=='Some' else True if v604[0]=='None' else stuck(v604))),(v608[3] if (v608:=snd_(v599[1]))[0]=='Line' else stuck(v608)))) else ('None',)))[1] if (v600:=loop_reads_(v597,v598,v599[2]))[0]=='Some' else ('None',) if v600[0]=='None' else stuck(v600)) if v599[0]=='Cons' else stuck(v599))
def stretch_ordered_(v610,v611):return (plain_ordered_(v610[1],v611) if v610[0]=='Plain' else (((('Some',fold_right_((lambda v621:lambda v622:set_(fst_((v623[1] if (v623:=snd_(v621))[0]=='Line' else stuck(v623))),('Some',('Some',('Pair',v610[1],snd_((v624[1] if (v624:=snd_(v621))[0]=='Line' else stuck(v624))),),),),v622)),v611,v610[3]),) if (v620:=forallb_((lambda v614:(forallb_((lambda v617:lambda v618:unread_(v617,v618))(v611),(v619[3] if (v619:=snd_(v614))[0]=='Line' else stuck(v619))) if (v616:=fresh_(v611,fst_((v615[1] if (v615:=snd_(v614))[0]=='Line' else stuck(v615))))) else False)),v610[3])) else ('None',)) if (v613:=loop_reads_(v610[2],v612[1],v610[3]))[0]=='Some' else ('None',) if v613[0]=='None' else stuck(v613)) if (v612:=loop_targets_(v610[2],v610[3],('Leaf',)))[0]=='Some' else ('None',) if v612[0]=='None' else stuck(v612)) if v610[0]=='Repeat' else stuck(v610))
def all_ordered_(v625):return (('Some',('Leaf',),) if v625[0]=='Nil' else (stretch_ordered_(v625[1],v626[1]) if (v626:=all_ordered_(v625[2]))[0]=='Some' else ('None',) if v626[0]=='None' else stuck(v626)) if v625[0]=='Cons' else stuck(v625))
def ordered_(v627):return (forallb_((lambda v629:fresh_(v628[1],fst_(v629))),(v627[4] if v627[0]=='Program' else stuck(v627))) if (v628:=all_ordered_((v627[3] if v627[0]=='Program' else stuck(v627))))[0]=='Some' else False if v628[0]=='None' else stuck(v628))
def first_of_(v630,v631):return (('Some',snd_(v633[1]),) if (v633:=find_((lambda v632:eqb0_(fst_(v632),v631)),(v630[5] if v630[0]=='Program' else stuck(v630))))[0]=='Some' else ('Some',v631,) if v633[0]=='None' else stuck(v633))
def check_(v634):return (v635:=of_list_(lines_(v634)),(v636:=(lambda v637:lambda v638:lambda v639:lambda v640:lambda v641:lambda v642:lambda v643:check_blocks_(v637,v638,v639,v640,v641,v642,v643))((v634[1] if v634[0]=='Program' else stuck(v634)))((v634[2] if v634[0]=='Program' else stuck(v634)))(v635),(v644:=(lambda v645:lambda v646:forallb_((lambda v647:lambda v648:lambda v649:lambda v650:lambda v651:rests_(v647,v648,v649,v650,v651))((v634[1] if v634[0]=='Program' else stuck(v634)))((v634[2] if v634[0]=='Program' else stuck(v634)))(v645)(v646),(v634[13] if v634[0]=='Program' else stuck(v634)))),((((v644((lambda v672:('Some',v672,)))(v671[1]) if (v671:=v636(('Nil',))(False)((v634[11] if v634[0]=='Program' else stuck(v634)))(keep_disk_((v634[12] if v634[0]=='Program' else stuck(v634)),v668[1])))[0]=='Some' else False if v671[0]=='None' else stuck(v671)) if (v670:=v644((lambda v669:('Some',v669,)))(v668[1])) else False) if (v668:=v636(('Nil',))(False)((v634[10] if v634[0]=='Program' else stuck(v634)))(resting_((v634[13] if v634[0]=='Program' else stuck(v634)))))[0]=='Some' else False if v668[0]=='None' else stuck(v668)) if (v667:=((v644((lambda v665:lambda v666:next_of_(v665,v666))(v634))(v664[1]) if (v664:=check_parts_((v634[1] if v634[0]=='Program' else stuck(v634)),(v634[2] if v634[0]=='Program' else stuck(v634)),v635,(v634[7] if v634[0]=='Program' else stuck(v634)),(v634[9] if v634[0]=='Program' else stuck(v634)),resting_((v634[13] if v634[0]=='Program' else stuck(v634)))))[0]=='Some' else False if v664[0]=='None' else stuck(v664)) if (v663:=((v644((lambda v661:lambda v662:first_of_(v661,v662))(v634))(v660[1]) if (v660:=v636((v634[6] if v634[0]=='Program' else stuck(v634)))(False)((v634[8] if v634[0]=='Program' else stuck(v634)))(nothing_))[0]=='Some' else False if v660[0]=='None' else stuck(v660)) if (v659:=(ordered_(v634) if (v658:=(forallb_((lambda v656:lambda v657:well_kept_(v656,v657))((v634[1] if v634[0]=='Program' else stuck(v634))),(v634[13] if v634[0]=='Program' else stuck(v634))) if (v655:=forallb_((lambda v652:existsb_((lambda v653:eqb0_((v654[1] if (v654:=snd_(v653))[0]=='Held' else stuck(v654)),fst_(v652))),(v634[13] if v634[0]=='Program' else stuck(v634)))),(v634[4] if v634[0]=='Program' else stuck(v634)))) else False)) else False)) else False)) else False)) else False))[1])[1])[1]
check = check_
